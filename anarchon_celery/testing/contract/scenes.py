"""What happens to a job in several tests of the contract."""

from __future__ import annotations

import time
from contextlib import contextmanager

from ...folding import FOLD_AFTER
from ...protocol import (
    Claim,
    Run,
)
from ...slots import Leap
from ...stores import Store
from .story import (
    DAY,
    MINUTE,
    SECOND,
    Story,
    T,
)


def dispatch_in_vain(story: Story) -> Claim:
    """Publish a claimed run five times without a start; return the answer of the sixth attempt."""
    for time_over in range(5):
        story.sent(start_timeout=MINUTE)
        story.wait_for_deadline()
        answer = story.redispatch(nonce=f"v{time_over}")
    return answer


def publish_two(story: Story) -> None:
    """Slot T is published, and the next one as well, and is running."""
    for slot in (T, T + MINUTE):
        story.now = slot
        story.claim(slot, nonce=f"n{slot}")
        story.sent(slot, supervised=False)
    story.start(T + MINUTE, token="t2")


def lose_to_a_claim(story: Story) -> None:
    story.wait_for_deadline()
    story.redispatch()


def lose_to_a_message(story: Story) -> None:
    lose_to_a_claim(story)
    story.sent()


def lose_to_a_failed_publish(story: Story) -> None:
    lose_to_a_claim(story)
    story.release(nonce="m1")


def lose_to_a_start(story: Story) -> None:
    lose_to_a_message(story)
    story.start(token="t2")


def lose_to_a_retry(story: Story) -> None:
    lose_to_a_start(story)
    story.requeue(token="t2")


def lose_to_a_handover(story: Story) -> None:
    lose_to_a_start(story)
    story.release(token="t2")


def lose_to_an_end(story: Story) -> None:
    lose_to_a_start(story)
    story.finish(token="t2")


def lose_for_good(story: Story) -> None:
    story.wait_for_deadline()
    story.redispatch(max_crashes=1)


def begin_to(state: str, story: Story) -> None:
    """A run of T in that state, dispatched once."""
    if state == "running":
        story.begin()
    elif state == "buffered":
        story.claim(T - SECOND, nonce="n0", overlap="allow")
        story.claim(overlap="queue")
    else:
        story.claim()
    if state == "released":
        story.sent()
        story.start()
        story.release(token="t1")
    elif state in ("queued", "succeeded", "published", "failed", "cancelled"):
        story.sent(supervised=state != "published")
    if state in ("succeeded", "failed", "cancelled"):
        story.start()
        story.finish(outcome=state, reason="b")
    assert story.run().state == state


def wait_behind(story: Story, **how) -> Run:
    """Slot T is running, and the next one, a minute later, waits for it."""
    story.begin(**how)
    story.now = T + MINUTE
    claim = story.claim(T + MINUTE, nonce="n2", overlap="queue")
    assert claim.answer == "overlap"
    return story.run(T + MINUTE)


def end_by_finish(story: Story) -> None:
    assert story.finish(outcome="failed")


def end_by_crash(story: Story) -> None:
    story.wait_for_deadline()
    assert story.redispatch(max_crashes=1).answer == "abandoned"


def end_unsupervised(story: Story) -> None:
    """The run was never started."""
    story.sent(supervised=False)
    assert story.run().state == "published"


def end_settled(story: Story) -> None:
    """Nor was this one."""
    story.sent()
    assert story.settle(outcome="cancelled")


def stopped(story: Story) -> None:
    """Slot T is running and asked to stop, the next one waits."""
    story.begin()
    story.now = T + MINUTE
    assert story.claim(T + MINUTE, nonce="n2", overlap="cancel").answer == "overlap"


def floors(story: Story) -> dict[str, int | None]:
    return {known.hash: known.floor for known in story.record().hashes}


def begins(story: Story) -> list[tuple[str, int]]:
    return [(known.hash, known.since) for known in story.record().hashes]


@contextmanager
def nothing_new(story: Story):
    """Nothing is written but that the job is still had."""
    before = dict(begins(story)), floors(story)
    yield
    assert before == (dict(begins(story)), floors(story))


def pause(story: Story, reason: str = "an upgrade", by: str = "anna") -> bool:
    return story.store.pause(story.job, reason=reason, by=by, now=story.now)


def resume(story: Story) -> bool:
    return story.store.resume(story.job, now=story.now)


def ended(story: Story, *slots: int) -> None:
    for slot in slots:
        story.now = max(story.now, slot)
        story.begin(slot, overlap="allow", token=f"t{slot}")
        story.finish(slot, token=f"t{slot}")


def slots_of(store: Store) -> list[int]:
    return sorted(run.slot for run in store.runs(limit=1_000_000))


KEEP = {"history": 30 * DAY, "most": 1000}


def skipped(story: Story, *minutes: int, **how) -> None:
    """Skip slots that come due so many minutes after T."""
    for minute in minutes:
        story.now = T + minute * MINUTE
        assert story.claim(story.now, nonce=f"n{minute}", **how).answer in ("overlap", "paused")


def housekeeping(story: Story, after: int = FOLD_AFTER, **how) -> int:
    """Prune when so much time has passed since now; return how many went."""
    return story.store.prune(**KEEP | how, now=story.now + after)


def told(story: Story) -> list[tuple[int, str, int, int | None]]:
    """The job's runs, oldest first: after how many minutes, state, for how many slots and until when."""
    return [
        ((run.slot - T) // MINUTE, run.state, run.count, run.until and (run.until - T) // MINUTE)
        for run in reversed(story.store.runs(job=story.job, limit=1_000_000))
    ]


def win(story: Story) -> None:
    story.now = T + 3 * MINUTE
    assert story.claim(story.now, overlap="allow", nonce="n3").won


def run_to_the_end(story: Story) -> None:
    story.now = T + 3 * MINUTE
    story.begin(story.now, overlap="allow", token="t3")
    assert story.finish(story.now, token="t3")


def wait(story: Story) -> None:
    story.now = T + 3 * MINUTE
    assert story.claim(story.now, overlap="queue", nonce="n3").run.state == "buffered"


def miss(story: Story) -> None:
    story.now = T + 4 * MINUTE - 1
    story.offer(leap=Leap(T + 3 * MINUTE, T + 4 * MINUTE - 1, 60), nonce="n3")


def wall_clock() -> int:
    return int(time.time() * 1000)


ARGUMENTS = '[["ü", 1], {"full": true}]'
