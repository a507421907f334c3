"""What the tasks do: they take their time, look at their lease or not, write, fail, ask for retries."""

from __future__ import annotations

import random
from typing import Any

from anarchon_celery import headers
from anarchon_celery.interrupting import Interruptible

from .jobs import JOBS
from .world import World


def work(cluster: Any, task: Any) -> None:
    """The body of every task. What it does follows from the seed, its run and its attempt."""
    key = headers.read(task.request.headers[headers.HEADER]).key
    lease, retries = task.lease if hasattr(task, 'lease') else None, task.request.retries
    attempt, fence = (lease.attempt, lease.fence) if lease else (0, 0)
    dice = random.Random(f'{cluster.seed} {key} {attempt} {retries}')
    body = cluster.watch.began(key, attempt, fence, retries)
    try:
        _go_on(cluster, lease, body, dice)
        if key.job == 'retry' and retries < dice.choice((0, 1, 2, 3)):
            task.retry(countdown=dice.choice((0, 0, 0, 1, 30)))
        if dice.random() < 0.1:
            raise ValueError('it went wrong')
        body.how = 'returned'
    except BaseException as reason:
        body.how = type(reason).__name__
        raise
    finally:
        body.ended = cluster.world.now


def _go_on(cluster: Any, lease: Any, body: Any, dice: random.Random) -> None:
    host = cluster.world.current.process.host
    until = host.monotonic() + dice.uniform(*JOBS[body.key.job][1])
    heeds = dice.random() < 0.8
    while (left := until - host.monotonic()) > 0.001:
        step = min(left, dice.uniform(5, 20))
        if lease is not None and heeds:
            lease.wait(step)
        else:
            cluster.world.sleep(step * 1000 / host.rate)
        if lease is not None:
            cluster.watch.write(body)


class Throwing(Interruptible):
    """Interrupts a body where it sleeps."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world, self._actor = world, world.current

    def _reach(self, reason: type[BaseException]) -> bool:
        def throw() -> None:
            if self._in_body:
                raise reason()

        assert self._actor is not None
        self._world.wake(self._actor, throw)
        return True
