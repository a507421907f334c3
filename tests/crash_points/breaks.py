"""Breaks of our own, each of which the case beside it has to find: else the cases could not fail.

They are made in the processes of the cluster: ``CRASH_POINTS_BREAK`` names one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from anarchon_celery import fencing, lease, trust
from anarchon_celery.protocol import Stale, Started
from anarchon_celery.scheduler import Scheduler
from anarchon_celery.stores.redis import RedisStore
from anarchon_celery.stores.sql import SqlStore


def never_taken_over(state: str) -> None:
    """What is left in a state stays there."""
    may = Scheduler._may_take
    Scheduler._may_take = lambda self, run, orphaned: run.state != state and may(self, run, orphaned)


def fence_not_checked() -> None:
    """What is written to takes everything."""
    fencing.HSET = "for place = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1]) end"


def stale_is_run() -> None:
    """A worker runs what the store says is not to be run by its message."""
    begun = Started(attempt=1, fence=1, trigger='scheduled')
    _starts(lambda answer: begun if isinstance(answer, Stale) else answer)


def fence_stands_still() -> None:
    """Each start has the same fence."""
    _starts(lambda answer: answer if isinstance(answer, Stale) else replace(answer, fence=7))


def trusted_for_ever() -> None:
    """A holder goes by what it once was told."""
    plain = trust.trusted_until
    vars(lease)['trusted_until'] = lambda asked_at, length: plain(asked_at, 1000 * length)


def _starts(made_of: Callable[[Any], Any]) -> None:
    for store in (RedisStore, SqlStore):
        store.start = _changed(store.start, made_of)


def _changed(plain: Callable[..., Any], made_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(plain)
    def start(*args: Any, **kwargs: Any) -> Any:
        return made_of(plain(*args, **kwargs))

    return start


#: What is broken, and the case that finds it.
BREAKS: dict[str, tuple[Callable[[], None], str, str]] = {
    'a claim is never taken over': (lambda: never_taken_over('claimed'), 'claim:after', 'kill'),
    'a run is never taken over': (lambda: never_taken_over('running'), 'write:before', 'kill worker'),
    'the fence is not checked': (fence_not_checked, 'write:before', 'stop'),
    'a stale message is run': (stale_is_run, 'start:before', 'stop'),
    'the fence stands still': (fence_stands_still, 'finish:after', 'lost'),
    'a lease is trusted for ever': (trusted_for_ever, 'heartbeat:before', 'stop worker'),
}
