"""Schedules at random: fire times in order, soon found, or one line that says what is wrong."""

from __future__ import annotations

import time
from datetime import timezone
from typing import Any

from hypothesis import strategies as st

from anarchon_celery.errors import ScheduleError
from anarchon_celery.schedules import cron, every, once
from anarchon_celery.slots import from_iso
from tests.fuzz.configs import one_line
from tests.fuzz.values import ANY, TEXTS

FIELD = st.text('0123456789*/-,?LW#HRmonjasuth()~ ', max_size=7) | st.sampled_from(
    [
        '*',
        '*/5',
        '0',
        '59',
        '60',
        '1-5',
        '5-1',
        'mon',
        'mon-fri',
        'L',
        'L-3',
        '15W',
        '5#5',
        'H',
        'H(0-9)/3',
        'R',
        '?',
        '0-99999999',
        '1/0',
        '*/*',
        '-1',
        '31',
        '29',
        '2',
        '\u0663',
        '1,' * 300 + '1',
        'feb',
        '1-jan',
    ]
)
WORDS = st.lists(FIELD, min_size=1, max_size=8).map(' '.join) | st.sampled_from(
    ['@daily', '@reboot', '@midnight', '@never', '0 0 31 2 *', '0 0 29 2 1#5', '* * * * * *', '']
)
ZONES = (
    st.sampled_from(['UTC', 'Europe/Berlin', 'Pacific/Apia', 'Australia/Lord_Howe', 'Mars/Olympus', '', None])
    | ANY
)
KINDS = {cron: WORDS | ANY, every: TEXTS | ANY, once: TEXTS | ANY}
ANY_ZONE = st.none() | ZONES
KIND = st.sampled_from([cron, every, once])
INSTANTS = st.integers(from_iso('1970-01-01T00:00Z'), from_iso('2199-01-01T00:00Z'))

#: As long as a look may take (s of this thread's work): a beat has all its jobs to look at.
LONGEST = 5


def _made(data: st.DataObject) -> Any:
    kind = data.draw(KIND, 'kind')
    text = data.draw(KINDS[kind], 'text')
    zone = data.draw(ANY_ZONE, 'zone')
    more = {} if zone is None or kind is every else {'timezone': zone}
    return kind(text, **more)


def schedules_at_random(data: st.DataObject) -> None:
    """Any text for any schedule: its fire times come in order, and soon; or one line says why not."""
    begun = time.thread_time()
    try:
        schedule = _made(data)
        times = schedule.fire_times(timezone.utc, 'report')
    except ScheduleError as refused:
        one_line(refused)
    else:
        at = data.draw(INSTANTS, 'from')
        before, after = times.previous(at), times.next(at)
        assert before is None or before <= at
        assert after is None or after > at
        one_line(repr(schedule))
    took = time.thread_time() - begun
    assert took < LONGEST, f'it took {took:.1f} s'
