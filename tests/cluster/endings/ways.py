"""The ways to come to an end: what each needs, and what is done once its tasks have begun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.processes import wait_until

if TYPE_CHECKING:
    from tests.cluster.endings.scene import Scene

#: How long a task works that nobody stops (seconds), and one that is to come to its end by itself.
LONG, SHORT = 20.0, 6.0

#: The pools, and how a worker is told to have one.
POOLS: dict[str, tuple[str, ...]] = {
    'prefork': ('-P', 'prefork'),
    'prefork, spawn': ('-P', 'prefork'),
    'threads': ('-P', 'threads'),
    'solo': ('-P', 'solo'),
    'gevent': ('-P', 'gevent'),
    'eventlet': ('-P', 'eventlet'),
}
#: Those whose tasks have processes of their own.
PROCESSES = ('prefork', 'prefork, spawn')


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Way:
    """One way for a task, its process or its worker to come to an end.

    Attributes:
        title: what happens, as the page says it.
        act: does it, once all tasks have begun.
        bodies: the tasks of tests.cluster.endings.app that it happens to.
        flags: what the worker's command line has for it.
        conf: settings of this worker.
        env: what its environment says.
        options: what the entries' ``options`` say.
        pools: where there is such a thing.
        stops: the worker is to end.
        late: its tasks are not begun: the worker has its queue only when the act says so.
        aside: it needs a worker of its own also where one can run the tasks of several ways.
    """

    title: str
    act: Callable[[Scene], None]
    bodies: tuple[str, ...] = ('cooperative',)
    flags: tuple[str, ...] = ()
    conf: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    pools: tuple[str, ...] = tuple(POOLS)
    stops: bool = False
    late: bool = False
    aside: bool = True

    @property
    def word(self) -> str:
        """Its title, fit to be a part of names."""
        return ''.join(letter if letter.isalnum() else '-' for letter in self.title.lower())


def nothing(scene: Scene) -> None:
    """The task does it by itself."""


def sending(number: int, *, group: bool = False) -> Callable[[Scene], None]:
    """Send a signal to the worker."""
    return lambda scene: scene.worker.signal(number, group=group)


def to_children(number: int) -> Callable[[Scene], None]:
    """Send a signal to the processes of the tasks."""

    def act(scene: Scene) -> None:
        for pid in scene.task_pids():
            os.kill(pid, number)

    return act


def ctrl_c_twice(scene: Scene) -> None:
    """A terminal sends SIGINT to the whole group; people need a second to do it again."""
    scene.worker.signal(signal.SIGINT, group=True)
    scene.worker.wait_for('Hitting Ctrl[+]C again')
    time.sleep(AGAIN)
    scene.worker.signal(signal.SIGINT, group=True)


def pause(scene: Scene) -> None:
    """SIGSTOP until the run is somebody else's, then SIGCONT."""
    scene.worker.suspend(group=True)
    scene.wait_for_second_attempts()
    scene.worker.resume(group=True)


def cut_off(scene: Scene) -> None:
    """The store cannot be reached until the run is somebody else's."""
    scene.proxy.refuse()
    scene.wait_for_second_attempts()
    scene.proxy.accept()


def taken(scene: Scene) -> None:
    """Somebody else gets the run while the store and the worker go on."""
    for run in scene.runs():
        scene.release(run)


def revoke(scene: Scene) -> None:
    """Without ``terminate``: Celery looks at it before a task begins."""
    scene.control('revoke', scene.task_ids())


def terminate(scene: Scene) -> None:
    """With ``terminate``."""
    scene.control('revoke', scene.task_ids(), terminate=True)


def revoke_first(scene: Scene) -> None:
    """The message comes to a worker that knows it as revoked."""
    revoke(scene)
    scene.consume()


def expire_first(scene: Scene) -> None:
    """The message comes to a worker when it has expired."""
    wait_until(lambda: scene.age() > scene.way.options['expires'] + 0.1)
    scene.consume()


def shut_down(scene: Scene) -> None:
    """By remote control."""
    scene.control('shutdown')


def restart_pool(scene: Scene) -> None:
    """By remote control."""
    scene.control('pool_restart')


def scale_down(scene: Scene) -> None:
    """Give the pool something to do for a moment, and wait for what it makes of that."""
    for _ in range(4):
        scene.send('filler')
    scene.worker.wait_for('Scaling up')
    scene.worker.wait_for('Scaling down')


#: How long Celery waits in a soft stop, and people until they press Ctrl-C again (seconds).
SOFTLY, AGAIN = 2.0, 1.0
SOFT = {'worker_soft_shutdown_timeout': SOFTLY}
WHOLE = ('cooperative', 'sleeping')
ENDS = ('cooperative', 'unaware')

WAYS = (
    # the worker is stopped
    Way(title='SIGTERM', act=sending(signal.SIGTERM), bodies=ENDS, stops=True),
    Way(title='SIGTERM to the whole group', act=sending(signal.SIGTERM, group=True), bodies=ENDS,
        pools=PROCESSES, stops=True),
    Way(title='`control shutdown`', act=shut_down, bodies=ENDS, stops=True),
    Way(title='SIGQUIT', act=sending(signal.SIGQUIT), bodies=WHOLE, stops=True),
    Way(title='SIGQUIT, soft', act=sending(signal.SIGQUIT), bodies=WHOLE, conf=SOFT, stops=True),
    Way(title='SIGTERM, soft by `REMAP_SIGTERM`', act=sending(signal.SIGTERM), bodies=WHOLE, conf=SOFT,
        env={'REMAP_SIGTERM': 'SIGQUIT'}, stops=True),
    Way(title='Ctrl-C twice', act=ctrl_c_twice, bodies=WHOLE, stops=True),
    # its pool changes
    Way(title='`pool_restart`', act=restart_pool, bodies=ENDS, conf={'worker_pool_restarts': True}),
    Way(title='autoscale down', act=scale_down, bodies=('unaware',), flags=('--autoscale', '3,1'),
        env={'AUTOSCALE_KEEPALIVE': '0.2'}, pools=PROCESSES),
    Way(title='`--max-tasks-per-child`', act=nothing, bodies=('unaware',),
        flags=('--max-tasks-per-child', '1'), pools=PROCESSES),
    Way(title='`--max-memory-per-child`', act=nothing, bodies=('unaware',),
        flags=('--max-memory-per-child', '1'), pools=PROCESSES),
    # somebody dies
    Way(title='SIGKILL of the child', act=to_children(signal.SIGKILL), pools=PROCESSES, aside=False),
    Way(title='SIGTERM to the child', act=to_children(signal.SIGTERM), pools=PROCESSES, aside=False),
    Way(title='SIGKILL of the worker', act=sending(signal.SIGKILL), stops=True),
    Way(title='SIGKILL of the whole group', act=sending(signal.SIGKILL, group=True), pools=PROCESSES,
        stops=True),
    Way(title='paused for longer than the lease', act=pause),
    # Celery is told to end it
    Way(title='revoked before it began', act=revoke_first, late=True),
    Way(title='revoked, without `terminate`', act=revoke, bodies=('unaware',), aside=False),
    Way(title='revoked with `terminate`', act=terminate, bodies=WHOLE, aside=False),
    Way(title='hard time limit', act=nothing, bodies=WHOLE, options={'time_limit': 2}, aside=False),
    Way(title='soft time limit', act=nothing, bodies=WHOLE, options={'soft_time_limit': 2}, aside=False),
    # the lease is lost
    Way(title='another attempt took it', act=taken, aside=False),
    Way(title='cut off from the store', act=cut_off,
        bodies=('cooperative', 'swallowing', 'sleeping', 'busy', 'in_c')),
    # the task, the message
    Way(title='raises', act=nothing, bodies=('fails',), aside=False),
    Way(title='raises `SystemExit`', act=nothing, bodies=('exits',), aside=False),
    Way(title='the message expired', act=expire_first, options={'expires': 1}, late=True),
    Way(title='the task is unknown', act=nothing, bodies=('stranger',), env={'ENDINGS_UNKNOWN': '1'}),
    Way(title='the header’s version is unknown', act=nothing, env={'ENDINGS_HEADER_VERSION': '99'}),
)  # fmt: skip
