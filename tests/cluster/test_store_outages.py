"""What may happen to a store, all of it in a row, on the four stores side by side: the promises hold on each.

The waits are most of the time that this takes, so the four clusters run at once.
"""

import contextlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.cluster import Cluster, interval_slots
from tests.databases import MariaDB, PostgreSQL
from tests.processes import Process, wait_until
from tests.proxy import Proxy
from tests.servers import RedisServer

pytestmark = [pytest.mark.cluster, pytest.mark.timed, pytest.mark.slow, pytest.mark.timeout(300)]

STOPPED, DEAD, CUT, LOSSY = 30.0, 5.0, 3.0, 6.0  # seconds

#: The most that a cluster of two beats and a worker of three processes says to a store that is away, each
#: second: connections and requests. They are two to four; a loop without a wait makes hundreds.
CALLS_PER_SECOND = 10

#: How often a beat says so: three times, and then seldom.
LINES = 5


class Server:
    """A server and the network before it."""

    def __init__(self, server, url, word, every):
        self.server, self.direct = server.start(), url
        self.proxy = Proxy(server.port)
        self.url = url.replace(f':{server.port}/', f':{self.proxy.port}/')
        self.word, self.every = word, every

    def lose_answers(self):
        """From now on, of some calls that were carried out."""
        self.trap = self.proxy.trap(self.word, every=self.every, times=float('inf'))

    def answer(self):
        assert self.trap.sprung >= 3
        self.proxy.heal()

    def cut(self):
        """All connections, again and again, and then let nobody in."""
        for _ in range(8):
            self.proxy.reset()
            time.sleep(0.2)
        self.proxy.refuse()

    def mend(self):
        self.proxy.accept()

    def die(self):
        self.server.kill()

    def rise(self):
        self.server.start()

    def stop(self):
        self.server.suspend()

    def go_on(self):
        self.server.resume()

    @property
    def calls(self):
        """What came from the nodes so far."""
        return self.proxy.accepted + self.proxy.requests

    def close(self):
        self.proxy.close()
        self.server.close()


class File:
    """A SQLite file, and somebody else who keeps it for himself; there is no network, no call to count."""

    calls = 0

    def __init__(self, folder):
        self.direct = self.url = f'sqlite:///{folder / "store.db"}'
        script = (
            'import sqlite3, sys, time; db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60);'
            'db.execute("BEGIN EXCLUSIVE"); db.execute("DELETE FROM anarchon_runs"); print("locked");'
            'time.sleep(600)'
        )
        command = [sys.executable, '-c', script, str(folder / 'store.db')]
        self.other = Process(command, name='other', folder=folder)

    def stop(self):
        mark = self.other.mark()
        self.other.start().wait_for('locked', after=mark)

    def go_on(self):
        """SIGKILL, in the middle of its transaction."""
        self.other.kill()

    lose_answers = cut = die = stop
    answer = mend = rise = go_on

    def close(self):
        self.other.close()


def redis(folder):
    server = RedisServer(folder / 'redis')
    return Server(server, server.url(), b'EVALSHA', 10)


def postgresql(folder):
    server = PostgreSQL(durable=True)
    return Server(server, server.url(), b'COMMIT\0', 5)


def mariadb(folder):
    server = MariaDB(durable=True)
    return Server(server, server.url(), b'\x03COMMIT', 5)


STORES = {'redis': redis, 'postgresql': postgresql, 'mariadb': mariadb, 'sqlite': File}


def job(task, schedule, *args, **policy):
    return {
        'task': f'tests.cluster.app.{task}', 'schedule': schedule, 'args': args,
        'options': {'anarchon': policy},
    }  # fmt: skip


SCHEDULE = {
    'all': job('quick', 2, overlap='allow', catch_up='all'),
    'latest': job('quick', 2, overlap='allow', catch_up='latest'),
    'long': job('slow', '1h', 50),
}


class Played:
    """A cluster on one of the stores."""

    def __init__(self, kind, place, cluster):
        self.kind, self.place, self.cluster = kind, place, cluster
        options = ('--without-gossip', '--without-mingle', '--without-heartbeat')
        self.nodes = [cluster.beat(f'{kind}-beat-{number}') for number in (1, 2)]
        self.nodes.append(cluster.worker(f'{kind}-worker', *options))

    def wait_for_slots_after(self, moment, deadline=60):
        """Wait until what came due later has run."""
        for name in ('all', 'latest'):
            self.cluster.run_where(lambda run: run.slot > moment and run.state == 'succeeded', deadline, name)


@pytest.fixture
def places(tmp_path):
    made = {}

    def make(kind):
        folder = tmp_path / kind
        folder.mkdir()
        made[kind] = STORES[kind](folder)

    try:
        with ThreadPoolExecutor(len(STORES)) as pool:
            list(pool.map(make, STORES))
        yield made
    finally:
        for place in made.values():
            place.close()


@pytest.fixture
def played(places, processes, tmp_path):
    """A cluster on each store, each with a database of one broker of its own."""
    broker = RedisServer(tmp_path / 'broker').start()
    with contextlib.ExitStack() as stack:
        stack.callback(broker.close)
        found = []
        for number, (kind, place) in enumerate(places.items()):
            cluster = Cluster(
                processes, tmp_path / kind, SCHEDULE, store=place.url, watched=place.direct,
                broker={'broker_url': broker.url(number)}, anarchon_lease='60s', anarchon_first_catch_up='1d',
            )  # fmt: skip
            stack.callback(cluster.close)
            found.append(Played(kind, place, cluster))
        yield found
        stack.callback(processes.close)  # before their servers


def at_once(all_of_them, do):
    with ThreadPoolExecutor(len(all_of_them)) as pool:
        return list(pool.map(do, all_of_them))


def outage(all_of_them, seconds, begin, end):
    """Something happens to all stores, for a while; then all go on. Return how much was said meanwhile."""

    def happen(each):
        beats = each.nodes[:2]
        marks = [beat.mark() for beat in beats]
        begin(each.place)
        calls, began = each.place.calls, time.monotonic()
        wait_until(lambda: time.monotonic() >= began + seconds, seconds + 10)
        calls = each.place.calls - calls
        said = [beat.output[mark:] for beat, mark in zip(beats, marks, strict=True)]
        end(each.place)
        each.wait_for_slots_after(each.cluster.now())
        return calls, max(text.count('waiting for the store') for text in said)

    return dict(zip((each.kind for each in all_of_them), at_once(all_of_them, happen), strict=True))


def test_whatever_happens_to_a_store_no_slot_is_lost_and_none_is_run_twice(played):
    def begun(each):
        each.cluster.run_where(lambda run: run.attempt > 0, 90, 'long')
        each.wait_for_slots_after(0)
        return each.cluster.now()

    begins = at_once(played, begun)
    outage(played, LOSSY, lambda place: place.lose_answers(), lambda place: place.answer())
    said = {
        CUT: outage(played, CUT, lambda place: place.cut(), lambda place: place.mend()),
        DEAD: outage(played, DEAD, lambda place: place.die(), lambda place: place.rise()),
        STOPPED: outage(played, STOPPED, lambda place: place.stop(), lambda place: place.go_on()),
    }
    for seconds, of_each in said.items():
        for kind, (calls, lines) in of_each.items():
            assert calls <= CALLS_PER_SECOND * seconds, (kind, seconds, said)
            assert lines <= LINES, (kind, seconds, said)
    assert all(lines for _, lines in said[STOPPED].values())
    at_once(list(zip(played, begins, strict=True)), check)


def check(asked):
    """Each slot ran once, or was missed as the policy says; the long task never noticed."""
    each, begin = asked
    cluster, end = each.cluster, each.cluster.now() - 4000
    slots = {*interval_slots(2, begin, end)}
    wait_until(lambda: slots <= ran(cluster, 'all'), 90, why=lambda: f'{each.kind}: {slots}')
    wait_until(lambda: slots <= ran(cluster, 'latest') | missed(cluster), 90, why=lambda: f'{each.kind}')
    long = cluster.run_where(lambda run: run.state not in ('running', 'queued', 'claimed'), 60, 'long')
    assert (each.kind, 'succeeded', 1) == (each.kind, long.state, long.attempt)
    started = cluster.started()
    twice = {key: count for key, count in started.items() if count > 1}
    assert (each.kind, {}) == (each.kind, twice)
    assert (each.kind, slots) == (each.kind, {key.slot for key in started if key.job == 'all'} & slots)
    # A Redis that goes on carries out the claims that it got while it was stopped: those slots run too.
    assert missed(cluster) & slots or each.kind == 'redis'
    assert all(node.alive for node in each.nodes)


def ran(cluster, name):
    return {run.slot for run in cluster.runs(name) if run.state == 'succeeded'}


def missed(cluster):
    """The slots in the records of what was passed over."""
    found = [run for run in cluster.runs('latest') if run.state == 'missed']
    return {slot for run in found for slot in range(run.slot, (run.until or run.slot) + 1, 2000)}
