"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_celery import durations


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (10, 10_000),
        (0.25, 250),
        (0.1, 100),
        (1.0006, 1_001),
        (timedelta(minutes=5), 300_000),
        (timedelta(microseconds=1_500), 2),
        ("0s", 0),
        ("250ms", 250),
        ("10s", 10_000),
        ("90s", 90_000),
        ("5m", 300_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1d2h3m4s5ms", 93_784_005),
        ("1m5ms", 60_005),
    ],
)
def test_reads(value, expected):
    assert durations.milliseconds(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "10", "10x", "s", "10 s", "10S", "-5s", "1.5h", "30m1h", "1h1h", "10s5", "٣s", "1e3s"),
        *(True, False, None, float("nan"), float("inf"), -1, -0.5, 1e300, timedelta(seconds=-1), b"10s", []),
        "9" * 5000 + "s",
    ],
)
def test_refuses_in_one_line_that_names_the_value(value):
    with pytest.raises(ValueError) as raised:
        durations.milliseconds(value)
    message = str(raised.value)
    assert message.startswith(repr(value))
    assert "\n" not in message
    assert "'1h30m'" in message or "zero or more" in message


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("3600", 3_600_000), ("0", 0), ("1.5", 1_500), ("0.0006", 1), ("250ms", 250), ("1m", 60_000)],
)
def test_reads_what_is_typed(typed, expected):
    assert durations.written(typed) == expected


@pytest.mark.parametrize(
    "typed", ["", " ", "-5", "+5", "1.", ".5", "1e3", "nan", "inf", "1_000", "٣", "10 s", "1.5h", "9" * 50]
)
def test_refuses_what_is_typed_in_one_line_that_names_it(typed):
    with pytest.raises(ValueError) as raised:
        durations.written(typed)
    right = "seconds as a number such as 3600, or 250ms, 10s, 5m, 1h30m, 2d"
    assert str(raised.value) == f"{typed!r} is no duration: give {right}"


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(0, "0s"), (250, "250ms"), (1_500, "1s500ms"), (30_000, "30s"), (90_000, "1m30s"), (5_400_000, "1h30m"),
     (86_400_000, "1d"), (604_800_000, "7d")],
)  # fmt: skip
def test_text(ms, expected):
    assert durations.text(ms) == expected


def test_text_of_a_negative_duration():
    with pytest.raises(ValueError, match="-1 is negative"):
        durations.text(-1)


@given(st.integers(0, 10**14))
def test_text_reads_back(ms):
    assert durations.milliseconds(durations.text(ms)) == ms
