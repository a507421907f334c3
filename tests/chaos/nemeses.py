"""What is done to the cluster: each nemesis is a generator, and a table says which fits where, and how often.

A nemesis yields seconds to wait, or a function to wait for; other nemeses strike others meanwhile. It is over
when what it hit has been put right again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos import jobs
from tests.chaos.cluster import Cluster, Node, kill
from tests.chaos.seen import Seen

Wait = float | Callable[[], object]
Steps = Iterator[Wait]


@dataclass
class Strike:
    """What a nemesis has to do with: the cluster, what is seen of it, the nodes that are its own, chance."""

    cluster: Cluster
    seen: Seen
    nodes: list[Node]
    chance: Any
    notes: dict[str, Any]  #: what the history is told of it beside its name

    @property
    def node(self) -> Node:
        return self.nodes[0]

    @property
    def pid(self) -> int:
        return self.node.process.pid

    def start_again(self) -> Steps:
        """Once it has ended, begin anew, and wait until it says that it is ready."""
        for node in self.nodes:
            if not node.process.alive:
                self.cluster.start(node)
        yield lambda: all(self.seen.is_ready(node) for node in self.nodes)


# who is killed, stopped, paused --------------------------------------------------------------------


def kill_node(strike: Strike) -> Steps:
    strike.node.process.signal(signal.SIGKILL)
    yield lambda: not strike.node.process.alive
    yield strike.chance.uniform(0.1, 1.5)
    yield from strike.start_again()


def kill_group(strike: Strike) -> Steps:
    strike.node.process.signal(signal.SIGKILL, group=True)
    yield lambda: not strike.node.process.alive
    yield strike.chance.uniform(0.1, 1.5)
    yield from strike.start_again()


def kill_child(strike: Strike) -> Steps:
    """One that runs something, if there is one."""
    pid = strike.seen.busy_child(strike.node) or strike.seen.any_child(strike.node)
    strike.notes['pid'] = pid
    if pid:
        kill(pid)
    yield 0.5


def stop(number: int, *, group: bool) -> Callable[[Strike], Steps]:
    """Told to stop by a signal; deaf to it for long it is killed, as a supervisor would."""

    def stopped(strike: Strike) -> Steps:
        strike.node.process.signal(number, group=group)
        yield PATIENCE
        until = time.monotonic() + SUPERVISOR
        yield lambda: not strike.node.process.alive or time.monotonic() > until
        if strike.node.process.alive:
            strike.notes['killed'] = True
            strike.node.process.signal(signal.SIGKILL, group=True)
            yield lambda: not strike.node.process.alive
        yield from strike.start_again()

    return stopped


#: The shortest time after which what was told to stop is looked at again, and the longest (seconds).
PATIENCE, SUPERVISOR = 0.2, 15.0


def pause(strike: Strike) -> Steps:
    """For more than a lease; of workers the one first that has something left to write."""
    yield lambda: _suspend(strike)
    until, caught = time.monotonic() + PAUSED_AT_MOST, strike.notes.get('caught')
    yield strike.chance.uniform(jobs.LEASE + 0.5, jobs.LEASE + 2)
    yield lambda: not caught or strike.seen.is_overtaken(caught) or time.monotonic() > until
    strike.node.process.resume(group=True)
    yield 0.2


def _suspend(strike: Strike) -> bool:
    """Stop it in the middle of a write, if it comes to one in time."""
    process = strike.node.process
    strike.notes.setdefault('tries', 0)
    strike.notes['tries'] += 1
    wanted = strike.node.kind == 'worker' and strike.notes['tries'] < 100
    if wanted and not strike.seen.about_to_write(strike.node):
        return False
    process.suspend(group=True)
    caught = strike.seen.about_to_write(strike.node) if wanted else None
    if wanted and not caught:
        process.resume(group=True)
        return False
    strike.notes['caught'] = caught
    return True


#: It goes on when somebody else has written what it is about to write, or after so many seconds.
PAUSED_AT_MOST = 10.0


def rolling_restart(strike: Strike) -> Steps:
    """All nodes, one after the other: what a deploy does."""
    for node in strike.nodes:
        node.process.signal(signal.SIGTERM)
        yield PATIENCE
        yield lambda node=node: not node.process.alive  # type: ignore[misc]
        strike.cluster.start(node)
    yield from strike.start_again()


def no_beat(strike: Strike) -> Steps:
    """All beats are killed, and away for much longer than the claim timeout: what came due is late."""
    for node in strike.nodes:
        node.process.signal(signal.SIGKILL)
    yield lambda: not any(node.process.alive for node in strike.nodes)
    yield 2 * jobs.CLAIM_TIMEOUT + 3.0
    yield from strike.start_again()


def clock(strike: Strike) -> Steps:
    seconds = strike.chance.choice([-300, 300])
    strike.notes['seconds'] = seconds
    strike.node.clock.shift(seconds)
    yield strike.chance.uniform(3, 8)
    strike.node.clock.shift(0)
    yield 0.2


# its way to the store ------------------------------------------------------------------------------


def requests_vanish(strike: Strike) -> Steps:
    strike.node.proxy.requests_vanish = True
    yield strike.chance.uniform(1, 4)
    yield from _heal(strike)


def answers_vanish(strike: Strike) -> Steps:
    strike.node.proxy.answers_vanish = True
    yield strike.chance.uniform(1, 4)
    yield from _heal(strike)


def reset(strike: Strike) -> Steps:
    for _ in range(3):
        strike.node.proxy.reset()
        yield 0.2


def half_open(strike: Strike) -> Steps:
    """The connections there are lead nowhere, and neither side learns of it."""
    strike.node.proxy.half_open()
    yield strike.chance.uniform(2, 5)
    yield from _heal(strike)


def delay(strike: Strike) -> Steps:
    strike.node.proxy.delay = 2.0
    yield strike.chance.uniform(2, 4)
    yield from _heal(strike)


def lose_answers(strike: Strike) -> Steps:
    """The server carries out what it is asked, and its answer is lost: of every second call that changes."""
    trap = strike.node.proxy.trap(strike.cluster.place.word, every=2, times=float('inf'))
    yield strike.chance.uniform(1, 3)
    strike.notes['lost'] = trap.sprung
    yield from _heal(strike)


def _heal(strike: Strike) -> Steps:
    """A stream that lacks a piece does not go on: the connections end."""
    strike.node.proxy.heal()
    strike.node.proxy.reset()
    yield 0.1


# the store and the broker --------------------------------------------------------------------------


def restart_store(strike: Strike) -> Steps:
    strike.cluster.place.down()
    yield strike.cluster.place.is_down
    yield strike.chance.uniform(0.2, 3)
    strike.cluster.place.up()
    yield 0.1


def promote_replica(strike: Strike) -> Steps:
    """What the master answers meanwhile is lost."""
    place: Any = strike.cluster.place
    yield place.has_replica
    strike.notes['frozen'] = round(time.monotonic(), 4)
    place.freeze_replica()
    yield strike.chance.uniform(0.3, 1.2)
    strike.notes['lost'] = place.promote()
    yield 0.1


def pause_queue(strike: Strike) -> Steps:
    """No worker takes a message for three start timeouts."""
    control = strike.cluster.app.control
    strike.notes['heard'] = len(control.cancel_consumer('celery', reply=True, timeout=1.0) or ())
    yield 3 * jobs.START_TIMEOUT
    control.add_consumer('celery', reply=True, timeout=1.0)
    yield 0.1


def purge_broker(strike: Strike) -> Steps:
    strike.notes['messages'] = strike.cluster.app.control.purge()
    yield 0.1


# which fits where ----------------------------------------------------------------------------------

Target = Literal['beat', 'worker', 'any', 'beats', 'all', 'store', 'broker']


@dataclass(frozen=True)
class Nemesis:
    """It has so many cards in the deck; ``stores`` are where it fits, and ``why`` it does not elsewhere."""

    name: str
    steps: Callable[[Strike], Steps]
    target: Target
    cards: int = 1
    stores: frozenset[str] | None = None
    why: str = ''


SERVERS = frozenset({'redis', 'postgresql', 'mariadb'})
NO_NETWORK = 'a file has no network before it'

NEMESES = (
    Nemesis('kill beat', kill_node, 'beat', 6),
    Nemesis('terminate beat', stop(signal.SIGTERM, group=False), 'beat', 2),
    Nemesis('pause beat', pause, 'beat', 4),
    Nemesis('kill child', kill_child, 'worker', 30),
    Nemesis('kill worker', kill_node, 'worker', 4),
    Nemesis('kill worker group', kill_group, 'worker', 4),
    Nemesis('terminate worker', stop(signal.SIGTERM, group=False), 'worker', 2),
    Nemesis('terminate worker group', stop(signal.SIGTERM, group=True), 'worker', 2),
    Nemesis('quit worker', stop(signal.SIGQUIT, group=False), 'worker', 2),
    Nemesis('pause worker', pause, 'worker', 6),
    Nemesis('requests vanish', requests_vanish, 'any', 8, SERVERS, NO_NETWORK),
    Nemesis('answers vanish', answers_vanish, 'any', 8, SERVERS, NO_NETWORK),
    Nemesis('reset', reset, 'any', 4, SERVERS, NO_NETWORK),
    Nemesis('half-open', half_open, 'any', 8, SERVERS, NO_NETWORK),
    Nemesis('delay', delay, 'any', 6, SERVERS, NO_NETWORK),
    Nemesis('answers lost', lose_answers, 'any', 12, SERVERS, NO_NETWORK),
    Nemesis('wall clock', clock, 'any', 8, SERVERS, 'each process has the clock of a file: its own'),
    Nemesis('store restarted', restart_store, 'store', 4, SERVERS, 'nothing runs that could be'),
    Nemesis('store locked', restart_store, 'store', 4, frozenset({'sqlite'}), 'only files are'),
    Nemesis(
        'replica promoted', promote_replica, 'store', 2, frozenset({'redis'}),
        'a database that is durable does not lose what it has answered',
    ),
    Nemesis('queue paused', pause_queue, 'broker'),
    Nemesis('broker purged', purge_broker, 'broker'),
    Nemesis('rolling restart', rolling_restart, 'all'),
    Nemesis('no beat', no_beat, 'beats'),
)  # fmt: skip

#: What ends a process: these are counted as kills.
KILLS = frozenset(nemesis.name for nemesis in NEMESES if nemesis.name.startswith(('kill', 'no beat')))


def fitting(store: str) -> list[Nemesis]:
    return [nemesis for nemesis in NEMESES if nemesis.stores is None or store in nemesis.stores]

