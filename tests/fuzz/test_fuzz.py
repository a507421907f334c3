"""In short what ``python -m tests.fuzz`` does for as long as it is let."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anarchon_celery.config import SETTINGS, Config
from anarchon_celery.entries import planned_jobs
from anarchon_celery.errors import SettingError
from anarchon_celery.schedules import cron, every, once
from tests.fuzz.__main__ import ON_STORES, PLAIN
from tests.fuzz.configs import one_line, policies_at_random, settings_at_random
from tests.fuzz.crons import schedules_at_random
from tests.fuzz.messages import messages_at_random
from tests.fuzz.rows import rows_at_random
from tests.fuzz.stores import KINDS, Stores
from tests.pages import DOCS
from tests.test_cli import Desk

QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck))
FEW = settings(max_examples=8, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope='module')
def stores():
    made = Stores()
    yield made
    made.close()


@pytest.mark.parametrize('part', [settings_at_random, policies_at_random, schedules_at_random])
def test_whatever_is_written_is_meant_or_refused_in_one_line(part):
    QUICK(given(st.data())(part))()


@pytest.mark.parametrize('kind', KINDS)
def test_whatever_a_header_says_the_next_message_is_run(stores, kind):
    url, empty = stores[kind]

    @FEW
    @given(st.data())
    def played(data):
        messages_at_random(data, url, empty)

    played()


@pytest.mark.parametrize('kind', KINDS)
def test_whatever_stands_in_the_store_the_other_jobs_are_on_time(stores, kind):
    url, empty = stores[kind]

    @FEW
    @given(st.data())
    def played(data):
        rows_at_random(data, url, empty)

    played()


#: hypothesis could not write it down either.
HUGE = 10**5_000


@pytest.mark.parametrize('name', SETTINGS)
@pytest.mark.parametrize('value', [HUGE, -HUGE, [HUGE], (HUGE,)], ids=['+', '-', 'list', 'tuple'])
def test_a_number_that_python_does_not_write_is_refused_in_one_line(name, value):
    desk = Desk(**{f'anarchon_{name}': value})
    try:
        with pytest.raises(SettingError) as refused:
            Config.of(desk.app)
    finally:
        desk.close()
    assert f'anarchon_{name}=<' in one_line(refused.value)


@pytest.mark.parametrize('kind', [cron, every, once])
def test_a_schedule_of_such_a_number_is_refused_in_one_line(kind):
    entries = {
        name: {'task': 't', 'schedule': schedule} for name, schedule in (('bad', kind(HUGE)), ('good', 1))
    }
    desk = Desk(beat_schedule=entries)
    try:
        found, refused = planned_jobs(desk.app, Config.of(desk.app))
    finally:
        desk.close()
    assert ['good'] == list(found)
    (line,) = refused
    assert "'bad'" in one_line(line)


def test_the_parts_on_the_page():
    parts = len(PLAIN) + len(ON_STORES) * len(KINDS)
    page = (DOCS / 'proof.md').read_text()
    assert f'300 seconds for each of its {parts} parts (' in page
    assert f'so {5 * parts} minutes in all' in page
