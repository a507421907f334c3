"""How a beat portions what came due: by slots, from a place of its own on, and not all of it at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from anarchon_celery import Scheduler
from anarchon_celery.portions import portions
from anarchon_celery.protocol import Offer
from tests.stage import MINUTE, Faults, T, clock, put_in_front, stage

__all__ = ["clock", "stage"]  # fixtures

FIRST, MIDDLE, LAST = "00000000", "80000000", "ffffffff"


def offers(*slots: int) -> list[Offer]:
    """An offer for each job, with so many slots."""
    return [Offer(job=f"job-{n:04}", slots=(*range(T, T + count),)) for n, count in enumerate(slots)]


def sizes(given: list[Offer], *, most: int = 200, node: str = FIRST) -> list[int]:
    return [sum(len(offer.slots) for offer in some) for some in portions(given, most=most, node=node)]


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (0, []), (1, [1]), (50, [50]), (60, [50, 10]), (200, [50] * 4), (400, [100] * 4),
        (800, [200] * 4), (1_000, [200] * 5),
    ],
)  # fmt: skip
def test_what_is_due_is_taken_in_a_few_portions(due, expected):
    assert expected == sizes(offers(*[1] * due))


def test_the_slots_of_one_job_stay_together():
    assert [40, 60, 45] == sizes(offers(40, 60, 5, 40), most=50)


@pytest.mark.parametrize(
    ("node", "begins"), [(FIRST, 0), ("3fffffff", 0), ("40000000", 50), (MIDDLE, 100), (LAST, 150)]
)
def test_each_node_begins_at_its_own_place_and_keeps_the_order(node, begins):
    taken = portions(offers(*[1] * 200), most=200, node=node)
    assert f"job-{begins:04}" == taken[0][0].job
    assert all(some == sorted(some, key=lambda offer: offer.job) for some in taken)
    assert 200 == len({offer.job for some in taken for offer in some})


class Meanwhile(Faults):
    """Right after its first claim is answered another beat ticks."""

    other: Scheduler | None = None

    def claim(self, *args, **kwargs):
        answers = self.store.claim(*args, **kwargs)
        other, self.other = self.other, None
        if other is not None:
            other.tick()
        return answers


@pytest.mark.parametrize("jobs", [200, 1_000])
def test_four_beats_that_look_at_one_instant_share_what_is_due(stage, jobs):
    schedule = {f"job-{n:04}": {"task": "t", "schedule": 60} for n in range(jobs)}
    beats = [stage.beat(schedule, anarchon_node=f"beat:{n}", anarchon_jitter=0) for n in range(4)]
    between = [put_in_front(beat, Meanwhile(beat.store)) for beat in beats]
    for beat, id in zip(beats, (FIRST, "40000000", MIDDLE, "c0000000"), strict=True):
        beat.node = replace(beat.node, id=id)
        beat.tick()
    stage.messages()
    stage.clock.advance(MINUTE)
    for one, other in zip(between, beats[1:], strict=False):
        one.other = other
    beats[0].tick()
    at_once = [run for run in stage.store.runs(limit=2 * jobs) if run.slot == T + MINUTE]
    assert jobs == len(stage.messages()) == len(at_once)
    by_node = Counter(run.node for run in at_once)
    assert 4 == len(by_node)
    assert max(by_node.values()) <= 0.4 * jobs
