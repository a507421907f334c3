"""Signals, as Celery has them: one for each happening, named as it is in the log.

::

    from anarchon_celery.signals import run_failed

    @run_failed.connect(sender="report")    # the job's name; without a sender: of all jobs
    def tell_somebody(sender, event, job, slot, attempt, **_):
        ...

A receiver is called with ``sender`` (the job's name; of what is of no job, the node's) and with the keyword
arguments ``event`` (the frozen value of :mod:`anarchon_celery.events`, whose attributes tell the rest),
``job``, ``slot`` (an aware UTC datetime), ``kind`` (``scheduled``, ``manual``, ``backfill``), ``attempt``,
``fence`` and ``node``, None where there is no such thing. What it raises is logged and harms nothing. It is
called where the happening was met, in the middle of that: it has to be quick. docs/signals.md says which
process and thread that is.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from celery.utils.dispatch import Signal

#: What a receiver is given, beside ``signal`` and ``sender``.
GIVEN = ("event", "job", "slot", "kind", "attempt", "fence", "node")

#: All signals, by name.
ALL: dict[str, Any] = {}


def _signal(name: str) -> Any:
    ALL[name] = Signal(name=name, providing_args={*GIVEN})
    return ALL[name]


# slots, as beats decide them
slot_claimed = _signal("slot_claimed")
slot_skipped = _signal("slot_skipped")
slot_missed = _signal("slot_missed")

# runs, as beats send them
run_dispatched = _signal("run_dispatched")
run_not_published = _signal("run_not_published")
run_taken_over = _signal("run_taken_over")
run_buffered = _signal("run_buffered")
run_abandoned = _signal("run_abandoned")
run_was_plain = _signal("run_was_plain")

# runs, as workers have them
run_started = _signal("run_started")
run_finished = _signal("run_finished")
run_failed = _signal("run_failed")
run_retried = _signal("run_retried")
run_handed_over = _signal("run_handed_over")
run_asked_to_stop = _signal("run_asked_to_stop")
run_cancelled = _signal("run_cancelled")
run_crashed = _signal("run_crashed")
lease_lost = _signal("lease_lost")
run_interrupted = _signal("run_interrupted")
run_killed = _signal("run_killed")
run_put_back = _signal("run_put_back")
run_unrecorded = _signal("run_unrecorded")
run_not_settled = _signal("run_not_settled")

# messages
message_given_back = _signal("message_given_back")
message_dropped = _signal("message_dropped")

# nodes
beat_started = _signal("beat_started")
worker_gone = _signal("worker_gone")
store_lost = _signal("store_lost")
store_back = _signal("store_back")
store_forgot = _signal("store_forgot")
broker_lost = _signal("broker_lost")
broker_back = _signal("broker_back")
tick_failed = _signal("tick_failed")
held_off = _signal("held_off")
job_refused = _signal("job_refused")
job_not_due = _signal("job_not_due")
noted = _signal("noted")
metrics_served = _signal("metrics_served")
metrics_not_served = _signal("metrics_not_served")


def _renew_locks() -> None:
    """Whoever of the parent's threads was sending while it forked does not go on in the child."""
    for signal in ALL.values():
        signal.lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
