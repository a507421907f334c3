"""Nodes that come and go in the night of a change of clocks, and publish each slot of it once.

Three nodes, of which some tick for a while, some are paused, some stop and are started again, and at times
nobody is there at all; with catch-up ``all`` nothing may be lost, and whatever a node missed or saw twice,
nothing may run twice.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from celery.schedules import crontab

from anarchon_celery.schedules import every
from anarchon_celery.slots import from_iso, iso
from tests.fire_times.walks import shown, times_of

MINUTE = 60_000
JOBS = {
    "hourly": "@hourly",
    "often": "*/20 * * * *",
    "nightly": "30 2 * * *",
    "midnight": crontab(0, 0),
    "list": crontab("0,30", "23,0,1,2,3"),
    "step": "5/25 0-3 * * *",
    "seconds": "30 15 1,2 * * *",
    "daily": every("1d", at=["00:30", "01:45", "02:15"]),
    "interval": "17m",
}
NIGHTS = [
    ("America/Havana", "2026-11-01T03:10:30Z"),
    ("America/New_York", "2026-11-01T03:10:30Z"),
    ("America/Santiago", "2026-04-05T00:10:30Z"),
    ("America/Santiago", "2026-09-06T02:10:30Z"),
    ("Australia/Lord_Howe", "2026-04-04T12:12:30Z"),
    ("Australia/Lord_Howe", "2026-10-03T12:12:30Z"),
    ("Europe/Berlin", "2026-03-28T22:10:30Z"),
    ("Europe/Berlin", "2026-10-24T22:10:30Z"),
    ("Pacific/Apia", "2011-12-30T07:10:30Z"),
]


@pytest.mark.parametrize(("zone", "begin"), NIGHTS)
def test_nodes_that_come_and_go_publish_each_slot_of_the_night_once(play, zone, begin):
    chance, started = Random(f"{zone} {begin}"), Counter("abc")
    jobs = {name: (schedule, {"catch_up": "all", "overlap": "allow"}) for name, schedule in JOBS.items()}

    def start(name: str):
        started[name] += 1
        conf = {"timezone": zone, "anarchon_jitter": 0.2}
        return play.beat(f"{name}:{started[name]}", poll="1m", conf=conf, **jobs)

    play.begin(begin)
    nodes = {name: start(name) for name in "abc"}
    play.until(begin, *nodes.values())
    first, end, now = from_iso(begin), from_iso(begin) + 300 * MINUTE, from_iso(begin)
    while now < end:
        for name in chance.sample("abc", chance.choice([0, 0, 1])):
            nodes[name].close()
            nodes[name] = start(name)
        now = min(now + chance.randrange(2 * MINUTE, 25 * MINUTE), end)
        play.until(iso(now), *chance.sample([*nodes.values()], chance.choice([0, 1, 1, 2, 3])))
    play.until(iso(end + 40_000), *nodes.values())  # what is late is caught up one by one

    expected = [
        f"{name} @ {slot}"
        for name, schedule in JOBS.items()
        for slot in shown(times_of(schedule, zone).between(first, end))
    ]
    assert 30 < len(expected)
    published = [slot for slot in play.published() if from_iso(slot.partition(" @ ")[2]) <= end]
    assert Counter(expected) == Counter(published)
