"""Which skips become one row; what the stores make of them is in their contract."""

from dataclasses import replace

import pytest

from anarchon_celery.folding import FOLD_AFTER, chains, fold, foldable
from anarchon_celery.ledger import Ledger
from anarchon_celery.protocol import COMEBACK_AFTER, Job, KnownSchedule, Run, RunKey

T = 1_790_000_000_000
NOW = T + FOLD_AFTER
SKIPPED = Run(job="report", slot=T - 5, state="skipped", dispatch=0, reason="overlap", finished_at=T)
JOB = Job(name="report", first_seen=T - 9, seen=T, floor=T)


def skips(*slots: int, **how) -> list[Run]:
    return [replace(SKIPPED, slot=slot, **how) for slot in slots]


def slots_of(found) -> list[list[int]]:
    return [[row.slot for row in chain] for chain in found]


def keys(*slots: int) -> list[RunKey]:
    return [RunKey("report", slot) for slot in slots]


def test_a_chain_is_two_at_least_and_ends_where_something_else_is():
    rows = [*skips(1, 2), *skips(3, reason="paused"), *skips(4, 5), *skips(6, state="missed"), *skips(7)]
    assert [[1, 2], [4, 5]] == slots_of(chains(rows, NOW))
    assert [[1, 2]] == slots_of(chains([*skips(1, 2), *skips(3, job="sync")], NOW))
    assert [] == slots_of(chains([], NOW))


@pytest.mark.parametrize("finished_at", [T + 1, None, "soon", 1.5])
def test_what_ended_lately_or_nobody_knows_when_keeps_apart(finished_at):
    rows = [*skips(1, 2), *skips(3, finished_at=finished_at), *skips(4, 5)]
    assert [[1, 2], [4, 5]] == slots_of(chains(rows, NOW))


@pytest.mark.parametrize(
    ("schedules", "bound"),
    [
        ([], NOW),
        ([("a", 1, 3)], 3),
        ([("a", 1, 3), ("b", 1, 2)], 2),
        ([("a", 1, 3), ("b", 2, None)], 2),
        ([("a", 1, 3), ("b", 4, 1)], 3),
        ([("a", 1, 3), ("b", 1, None, NOW - COMEBACK_AFTER)], 1),
        ([("a", 1, 3), ("b", 1, None, NOW - COMEBACK_AFTER - 1)], 3),
    ],
)
def test_what_some_schedule_may_still_have_to_decide_is_not_folded(schedules, bound):
    known = [KnownSchedule(hash, since, floor, *(seen or [NOW])) for hash, since, floor, *seen in schedules]
    chain, job = skips(1, 2, 3, 4), replace(JOB, hashes=tuple(known))
    expected = [slot for slot in (1, 2, 3, 4) if slot <= bound]
    assert keys(*expected if len(expected) > 1 else ()) == foldable(chain, job, NOW, 9)


def test_of_a_chain_no_more_go_than_may():
    assert keys(1, 2, 3) == foldable(skips(1, 2, 3, 4), JOB, NOW, 2)
    assert [] == foldable(skips(1, 2), JOB, NOW, 0)
    assert [] == foldable(skips(1, 2), None, NOW, 9), "nobody has the job: no floor could be raised"


def test_a_row_that_stands_for_many_reaches_to_its_last_slot():
    first, second = replace(SKIPPED, slot=1, until=3, count=3), replace(SKIPPED, slot=4, until=9, count=4)
    job = replace(JOB, floor=8, hashes=(KnownSchedule("a", 0, 8, NOW),))
    assert [] == foldable([first, second], job, NOW, 9)
    books = Ledger([replace(job, hashes=(KnownSchedule("a", 0, 9, NOW),))], [first, second])
    assert keys(4) == fold(books, NOW, keys(1, 4))
    assert {first.key: replace(first, until=9, count=7)} == books.runs == books.changed_runs
    assert books.jobs["report"].floor == 9


def test_what_was_found_is_folded_as_far_as_it_is_still_so():
    """Between the look and the step somebody else may have been faster."""
    rows = skips(1, 2, 4, 5)
    books = Ledger([JOB], [*rows[:2], replace(SKIPPED, slot=3, state="succeeded"), *rows[2:]])
    assert keys(2, 5) == fold(books, NOW, keys(0, 1, 2, 3, 4, 5))
    assert [(1, 2), (3, 1), (4, 2)] == sorted((run.slot, run.count) for run in books.runs.values())
    assert [] == fold(books, NOW, keys(1, 2, 3, 4, 5))


def test_the_row_ends_when_the_last_of_them_did():
    books = Ledger([JOB], [*skips(1, finished_at=T), *skips(2, finished_at=T - 1)])
    fold(books, NOW, keys(1, 2))
    assert T == books.runs[RunKey("report", 1)].finished_at
