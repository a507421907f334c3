"""Values that somebody may have put where others belong."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

from hypothesis import strategies as st

#: Numbers at the edges of what somebody counts with.
NUMBERS = st.sampled_from(
    [
        0,
        -1,
        1,
        7,
        2**31,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63),
        10**30,
        True,
        False,
        0.5,
        -0.0,
        1e18,
        1e400,
        float('nan'),
        -1e-300,
    ]
) | st.integers(-(2**40), 2**40)

#: Texts that mean something elsewhere, and such as mean nothing.
TEXTS = (
    st.sampled_from(
        [
            '',
            ' ',
            '0',
            '-1',
            '1e3',
            'nan',
            'null',
            'None',
            '{}',
            '[]',
            '[[',
            '"',
            "'; DROP TABLE x; --",
            '%s',
            '{0}',
            'running',
            'queued',
            'buffered',
            'succeeded',
            'scheduled',
            'manual',
            'skip',
            'good',
            'ä',
            '٣',
            '\u202e',
            '🦀',
            'a\nb',
            'a\x1b[31mb',
            'a\x00b',
            '\ud800',
            '2026-10-10T12:00:30.000Z',
            '9999-12-31T23:59:59Z',
            '[null, null]',
            '[[1], {"a": 1}]',
            'redis://:secret@host/0',
        ]
    )
    | st.text(max_size=8)
    | st.builds(lambda text, many: text * many, st.sampled_from('a[{é'), st.just(20_000))
)

#: What JSON can carry.
JSON = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)

#: A list in a list in a list, and so on.
NESTED = st.integers(100, 400).map(lambda depth: _nested(depth))

#: What Python and AMQP's tables have beside that.
OTHER = st.sampled_from(
    [
        b'',
        b'\xff\x00',
        datetime(2026, 10, 10),
        datetime(2026, 10, 10, tzinfo=timezone.utc),
        timedelta(1),
        timedelta.max,
        Decimal('1.5'),
        Decimal('NaN'),
        (),
        (1, 2),
        {1: 2},
    ]
)

ANY = JSON | NESTED | OTHER


def _nested(depth: int) -> list:
    found: list = []
    for _ in range(depth):
        found = [found]
    return found
