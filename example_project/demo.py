"""The quick start, played by itself: ``python -m example_project.demo``, or ``make demo``.

Three nodes share the jobs of ``quick_start.py``. One wins each slot. The node that runs ``report``
is stopped, and another starts that run again; the next one that runs it is killed, and again another
does. The exit status is 0 if the store recorded what the story tells, 1 with what differs.

All of it happens in a temporary folder; nothing of it is left, neither files nor processes. Every
step waits for a line that a node writes, with a deadline.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from anarchon_celery import AnarchonError
from anarchon_celery.protocol import Run, RunKey
from anarchon_celery.slots import from_iso, iso
from anarchon_celery.stores import Store, open_store

ROOT = Path(__file__).parents[1]

#: As quick_start.py has them, in milliseconds; and the default of ``anarchon_poll``.
SYNC_EVERY, LEASE, HEARTBEAT, POLL = 10_000, 6_000, 1_000, 1_000

#: What a node's colour is, in a terminal.
COLOURS = {'a': '36', 'b': '33', 'c': '35'}

#: A node's line about a run.
ABOUT_RUN = re.compile(r'\[anarchon\] (\w+) @ (\S+Z): (.*)')

#: How long a start, a stop or a message may take on a busy machine before the demo gives up (seconds).
PATIENCE = 40.0


class Failed(Exception):
    """The story cannot go on."""


class Interrupted(Exception):
    """Somebody wants the demo to end: Ctrl-C, SIGTERM, or nobody reads its output any more."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


# What the nodes say --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A line of one node about one run."""

    node: str
    job: str
    slot: int
    what: str


class Stage:
    """Prints what the nodes say and what the narrator says; keeps it, so that it can be waited for."""

    def __init__(self, *, colours: bool) -> None:
        self.colours = colours
        self.lines: list[tuple[str, str]] = []
        self.interrupted: int | None = None  # set by signal handlers, looked at by whoever waits
        self.alive: Callable[[], object] = lambda: None
        self._printing = threading.Lock()

    def interrupt(self, number: int, _frame: object = None) -> None:
        """Note that the demo shall end; nothing else, as this runs inside a signal handler."""
        self.interrupted = number

    def heard(self, node: str, text: str) -> None:
        """A node said something: of Celery's own lines only the bad ones are shown."""
        found = re.search(r'\[anarchon\].*|(ERROR|CRITICAL)/.*|^\w*Error: .*', text)
        if found:
            self._print(self._paint(f'{node} | {found[0]}', COLOURS[node]))
        self.lines.append((node, text))

    def tell(self, text: str) -> None:
        """The narrator speaks."""
        self._print(self._paint(f'\n--- {text}', '1'))

    def show(self, text: str) -> None:
        """Print it as it is."""
        self._print(text)

    def mark(self) -> int:
        """Where we are: what is said from now on has a later place."""
        return len(self.lines)

    def about_runs(self) -> list[Line]:
        """All lines about runs so far."""
        found = ((node, ABOUT_RUN.search(text)) for node, text in list(self.lines))
        return [Line(node, it[1], from_iso(it[2]), it[3]) for node, it in found if it]

    def wait_for(
        self, pattern: str, *, since: int = 0, node: str = '[abc]', deadline: float = PATIENCE
    ) -> tuple[str, re.Match[str]]:
        """Wait until a node says it; return which, and the match."""
        until = time.monotonic() + deadline
        while True:
            late = time.monotonic() > until  # before the last look
            new = self.lines[since:]
            since += len(new)
            for name, text in new:
                if re.fullmatch(node, name) and (match := re.search(pattern, text)):
                    return name, match
            if late:
                raise Failed(f'no node said {pattern!r} within {deadline:g} s')
            self.pause()

    def wait_until(self, look: Callable[[], object], what: str, deadline: float = PATIENCE) -> None:
        """Wait until it is so."""
        until = time.monotonic() + deadline
        while not look():
            if time.monotonic() > until:
                raise Failed(f'{what}: not within {deadline:g} s')
            self.pause()

    def pause(self) -> None:
        """A moment, between two looks; ends the demo if somebody asked for that or a node fell over."""
        time.sleep(0.02)
        if self.interrupted is not None:
            raise Interrupted(self.interrupted)
        self.alive()

    def _paint(self, text: str, code: str) -> str:
        return f'\033[{code}m{text}\033[0m' if self.colours else text

    def _print(self, text: str) -> None:
        with self._printing:
            try:
                print(text, flush=True)
            except BrokenPipeError:  # nobody reads any more
                sys.stdout = None  # print() does nothing from here on
                self.interrupt(signal.SIGPIPE)


# The nodes -----------------------------------------------------------------------------------------


class Node:
    """A node: a worker with a beat, in a process group of its own."""

    COMMAND = (
        sys.executable, '-m', 'celery', '-A', 'example_project.demo_app', 'worker', '-B',
        '--scheduler', 'anarchon_celery.Scheduler', '-P', 'threads', '-l', 'info',
    )  # fmt: skip

    def __init__(self, name: str, stage: Stage, folder: Path, env: dict[str, str]) -> None:
        self.name, self.stage, self.folder, self.env = name, stage, folder, env
        self.process: subprocess.Popen[str] | None = None
        self.expected = False  # to run

    def start(self) -> None:
        """Start it; what it says goes on the stage and into a file."""
        self.process = subprocess.Popen(
            [*self.COMMAND, '-n', f'{self.name}@%h'], cwd=self.folder, env=self.env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors='replace', start_new_session=True,
        )  # fmt: skip
        self.expected = True
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with open(self.folder / f'{self.name}.log', 'a') as log, process.stdout as said:
            for line in said:
                log.write(line)
                self.stage.heard(self.name, line.rstrip())

    def wait_until_ready(self, since: int) -> int:
        """Wait until its worker and its beat work; return the process id of its beat."""
        self.stage.wait_for(r'@\S+ ready\.', since=since, node=self.name)
        started = r'\[anarchon\] started as \S+:(\d+) '
        return int(self.stage.wait_for(started, since=since, node=self.name)[1][1])

    def stop(self) -> None:
        """Ask its worker to stop, as a deploy does: SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL its worker, and see it dead."""
        self._signal(signal.SIGKILL)
        self.wait_for_end()

    def wait_for_end(self) -> int:
        """Wait until its worker has ended; return its status."""
        assert self.process is not None
        self.stage.wait_until(lambda: self.process.poll() is not None, f'node {self.name} ends')
        return self.process.returncode

    def kill_what_is_left(self) -> None:
        """SIGKILL all of its process group."""
        self.expected = False
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody; macOS: only zombies
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def check(self) -> None:
        """Complain if it fell over."""
        if self.expected and self.process is not None and self.process.poll() is not None:
            last = '\n'.join(text for name, text in self.stage.lines[-200:] if name == self.name)
            raise Failed(f'node {self.name} ended with status {self.process.returncode}:\n{last}')

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.expected = False
        self.process.send_signal(number)


# The story -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interruption:
    """A run of report whose node was stopped or killed: when, by the store's clock, and its fence then."""

    key: RunKey
    node: str
    at: int
    fence: int


@dataclass(frozen=True)
class Told:
    """What the story claims."""

    all_up: int  #: the first slot of sync since all three nodes were up
    last: int  #: the last one
    stopped: Interruption
    killed: Interruption


class Story:
    """The quick start, step by step."""

    def __init__(self, stage: Stage, nodes: Sequence[Node], store: Store) -> None:
        self.stage, self.store = stage, store
        self.nodes = {node.name: node for node in nodes}
        self.beats: dict[str, int] = {}

    def play(self) -> Told:
        """Play it all; return what it claims."""
        self.now()  # a store that is not there ends the story before it begins
        all_up = self.start_three()
        stopped = self.stop_the_runner()
        self.start_again(stopped.node)
        killed = self.kill_the_runner(after=stopped.key.slot)
        last = self.until_sync_is_done()
        return Told(all_up, last, stopped, killed)

    def start_three(self) -> int:
        """Start the nodes; watch one of them win a slot."""
        self.stage.tell(
            'Three nodes start, each a beat and a worker. None of them leads.\n'
            '    sync comes due every 10 s, report every 30 s and takes 20 s. What came due just before\n'
            '    is caught up.'
        )
        for node in self.nodes.values():
            node.start()
        for node in self.nodes.values():
            self.beats[node.name] = node.wait_until_ready(since=0)
        now = self.now()
        slot = now - now % SYNC_EVERY + SYNC_EVERY
        said = rf'sync @ {iso(slot)}: '
        winner, _ = self.stage.wait_for(said + r'dispatched by \S+ \(attempt 1, scheduled\)')
        for loser in self.nodes.keys() - {winner}:
            self.stage.wait_for(said + r'skipped \(taken\)', node=loser)
        runner, _ = self.stage.wait_for(said + r'finished in')
        won = f'beat {winner} won it, worker {runner} ran it'
        self.stage.tell(f'All three looked at sync @ {iso(slot)}: {won}.')
        return slot

    def stop_the_runner(self) -> Interruption:
        """Stop the node that runs report; see another one start that run again."""
        node, run = self.runner_of_report()
        stage, mark, at = self.stage, self.stage.mark(), self.now()
        stage.tell(f'Node {node.name} runs {run.key}. It is stopped, as by a deploy: SIGTERM.')
        node.stop()
        stage.wait_for(rf'{run.key}: interrupted after', since=mark, node=node.name)
        other, again = self.second_attempt(run, mark)
        took = f'{(again - at) / 1000:.1f} s after the stop'
        stage.tell(f'{run.key} was handed over: {took} {other} started it, as attempt 2.')
        if status := node.wait_for_end():
            raise Failed(f'node {node.name} ended with status {status} when it was stopped')
        return Interruption(run.key, node.name, at, run.fence)

    def start_again(self, name: str) -> None:
        """Start the node that was stopped."""
        mark = self.stage.mark()
        self.stage.tell(f'Node {name} is started again.')
        self.nodes[name].start()
        self.beats[name] = self.nodes[name].wait_until_ready(since=mark)

    def kill_the_runner(self, after: int) -> Interruption:
        """Kill the node that runs the next report; see another one start that run again, and finish it."""
        node, run = self.runner_of_report(after)
        stage, mark, at = self.stage, self.stage.mark(), self.now()
        stage.tell(f'Node {node.name} runs {run.key}. It is killed: SIGKILL.')
        node.kill()
        orphan = self.beats[node.name]
        if not _lives(orphan):
            raise Failed(f'the beat of node {node.name}, process {orphan}, did not outlive its worker')
        node.kill_what_is_left()
        stage.tell(
            f'Nothing is handed over: the worker is gone. Its beat, process {orphan}, was left behind as\n'
            f'    an orphan, as `kill -9` of a `worker -B` does: it is killed, too. Now the lease of '
            f'{LEASE // 1000} s runs out.'
        )
        other, again = self.second_attempt(run, mark)
        took = f'{(again - at) / 1000:.1f} s after the kill'
        stage.tell(f'{took} {other} started {run.key} again, as attempt 2, from the beginning.')
        stage.wait_for(rf'{run.key}: finished in', since=mark)
        return Interruption(run.key, node.name, at, run.fence)

    def runner_of_report(self, after: int = 0) -> tuple[Node, Run]:
        """Wait until report runs for the first time in a slot after this one; return its node and its run."""
        found: list[Run] = []

        def look() -> bool:
            found[:] = [
                run for run in self.store.runs(job='report', state='running')
                if run.slot > after and run.attempt == 1 and self.now() - (run.started_at or 0) < 10_000
            ]  # fmt: skip
            return bool(found)

        self.stage.wait_until(look, 'report runs', deadline=75)
        # Its line, and no sync under way: only report is to be interrupted.
        self.stage.wait_for(rf'{found[0].key}: started on \S+ \(attempt 1, ')
        self.until_sync_is_done()
        run = self.store.run(found[0].key)
        if run is None or run.state != 'running' or run.attempt != 1:
            raise Failed(f'{found[0].key} does not run any more: {run}')
        return self.nodes[str(run.owner).partition('@')[0]], run

    def second_attempt(self, run: Run, since: int) -> tuple[str, int]:
        """Wait for the next attempt of this run; return the worker, and when it began."""
        started = rf'{run.key}: started on (\S+) \(attempt 2, takeover\)'
        worker = self.stage.wait_for(started, since=since)[1][1]
        again = self.store.run(run.key)
        return worker, (again and again.started_at) or 0

    def until_sync_is_done(self) -> int:
        """Wait for the end of the latest sync, or, if the next one is near, of that; return its slot."""
        now = self.now()
        slot = now - now % SYNC_EVERY
        if now - slot > SYNC_EVERY - 3_000:
            slot += SYNC_EVERY
        self.stage.wait_for(rf'sync @ {iso(slot)}: finished in')
        return slot

    def now(self) -> int:
        """Return the time by the store's clock."""
        self.store.runs(limit=1)  # whatever it answers, it learns the time
        return self.store.clock.now()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Is it so? -----------------------------------------------------------------------------------------


def differences(told: Told, runs: Sequence[Run], lines: Sequence[Line]) -> Iterator[str]:
    """Compare the story with what the store recorded and what the nodes wrote; say what differs."""
    yield from _sync_differs(told, runs, lines)
    yield from _stopped_differs(told.stopped, runs)
    yield from _killed_differs(told.killed, runs)
    began = [(run.started_at or 0, run.fence) for run in runs if run.job == 'report' and run.fence]
    fences = [fence for _, fence in sorted(began)]
    if fences != sorted(set(fences)):
        yield f'the fences of report do not grow: {fences}'
    for run in runs:
        if run.state in ('failed', 'abandoned'):
            yield f'{run.key} is {run.state}: {run.reason}'


def _sync_differs(told: Told, runs: Sequence[Run], lines: Sequence[Line]) -> Iterator[str]:
    """Every slot that came due since all nodes were up: one run, one winner, one start."""
    for slot in range(told.all_up, told.last + 1, SYNC_EVERY):
        key = RunKey('sync', slot)
        found = [
            (run.state, run.attempt, run.dispatch, run.crashes)
            for run in runs if run.job == 'sync' and run.slot <= slot <= (run.until or run.slot)
        ]  # fmt: skip
        if found != [('succeeded', 1, 1, 0)]:
            wanted = 'one run, succeeded at attempt 1'
            yield f'{key} should have {wanted}: (state, attempt, dispatch, crashes) = {found}'
        for what in ('dispatched by', 'started on'):
            said = [line for line in lines if (line.job, line.slot) == ('sync', slot)]
            nodes = [line.node for line in said if line.what.startswith(what)]
            if len(nodes) != 1:
                yield f'{key} should be {what} one node, not {nodes}'


def _stopped_differs(stopped: Interruption, runs: Sequence[Run]) -> Iterator[str]:
    for run in _second_attempts(stopped, 0, runs):
        if not 0 <= (took := (run.started_at or 0) - stopped.at) <= 2_000:
            yield f'{run.key} was started again {took / 1000:.2f} s after the stop, not within 2 s'
            return
    yield from _not_taken_over(stopped, 0, runs)


def _killed_differs(killed: Interruption, runs: Sequence[Run]) -> Iterator[str]:
    earliest, latest = LEASE - HEARTBEAT, LEASE + POLL + 2_000
    for run in _second_attempts(killed, 1, runs):
        if not earliest <= (took := (run.started_at or 0) - killed.at) <= latest:
            bounds = f'{earliest / 1000:g} to {latest / 1000:g} s'
            yield f'{run.key} was started again {took / 1000:.2f} s after the kill, not {bounds}'
            return
    yield from _not_taken_over(killed, 1, runs)


def _second_attempts(what: Interruption, crashes: int, runs: Sequence[Run]) -> list[Run]:
    wanted = ('succeeded', 'takeover', 2, crashes)
    return [
        run for run in runs
        if run.key == what.key and (run.state, run.trigger, run.attempt, run.crashes) == wanted
        and run.fence > what.fence and not str(run.owner).startswith(f'{what.node}@')
    ]  # fmt: skip


def _not_taken_over(what: Interruption, crashes: int, runs: Sequence[Run]) -> Iterator[str]:
    if not _second_attempts(what, crashes, runs):
        found = [run for run in runs if run.key == what.key]
        wanted = f'as attempt 2 with {crashes} crashes and a fence above {what.fence}'
        yield f'{what.key} should have succeeded elsewhere, {wanted}: {found}'


def table(runs: Sequence[Run]) -> Iterator[str]:
    """The runs, oldest first, for people."""
    heads = ('job', 'slot', 'state', 'attempt', 'crashes', 'fence', 'on', 'took', 'why')
    rows = [heads]
    for run in sorted(runs, key=lambda run: (run.slot, run.job)):
        took = f'{run.finished_at - run.started_at} ms' if run.started_at and run.finished_at else ''
        attempt = f'{run.attempt} ({run.trigger})' if run.attempt else ''
        cells = (iso(run.slot), run.state, attempt, run.crashes, run.fence or '', run.owner, took, run.reason)
        rows.append((run.job, *('' if cell is None else str(cell) for cell in cells)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        yield '    ' + '  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# The whole -----------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where one demo happens: a folder of its own and, on Redis, keys of its own."""

    folder: Path
    redis: str | None
    prefix: str

    @property
    def store_url(self) -> str:
        """The URL of the store that the nodes share."""
        return self.redis or f'sqlite:///{self.folder / "jobs.db"}'

    def environment(self) -> dict[str, str]:
        """What the nodes find: nothing of Celery's or Django's that happens to be set here."""
        own = {
            'PYTHONPATH': os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH')))),
            'PYTHONUNBUFFERED': '1',
            'TMPDIR': str(self.folder),
            **({'REDIS_URL': self.redis, 'DEMO_PREFIX': self.prefix} if self.redis else {}),
        }
        foreign = ('CELERY', 'DJANGO', 'REDIS_URL', 'DEMO_PREFIX')
        return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | own

    def clear(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.redis:
            with (
                contextlib.suppress(redis.RedisError),  # one that is not there keeps nothing
                contextlib.closing(redis.Redis.from_url(self.redis)) as client,
            ):
                for key in client.scan_iter(f'*{self.prefix}*', count=1000):
                    client.delete(key)


@contextlib.contextmanager
def heeding(stage: Stage) -> Iterator[None]:
    """Let Ctrl-C and the like end the demo at its next look, in good order."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stage.interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def run(stage: Stage, place: Place, *, keep: bool) -> int:
    """Play the story in this place, and clean up whatever happens; return the exit status."""
    store = open_store(place.store_url, prefix=place.prefix)
    nodes = [Node(name, stage, place.folder, place.environment()) for name in 'abc']
    stage.alive = lambda: [node.check() for node in nodes]
    try:
        told = Story(stage, nodes, store).play()
        runs = store.runs(limit=1000)
    except Interrupted as reason:
        stage.tell(f'{reason}: the demo ends here.')
        return reason.status
    except (Failed, AnarchonError) as reason:
        stage.tell(f'The story cannot go on: {reason}')
        return 1
    finally:
        for node in nodes:
            node.kill_what_is_left()
        with contextlib.suppress(AnarchonError):
            store.close()
        if not keep:
            place.clear()
    return verdict(stage, told, runs)


def verdict(stage: Stage, told: Told, runs: Sequence[Run]) -> int:
    """Show the runs, and whether they are what the story tells; return the exit status."""
    stage.tell('What the store recorded:')
    for line in table(runs):
        stage.show(line)
    differing = list(differences(told, runs, stage.about_runs()))
    if differing:
        stage.tell('The store recorded something else than the story tells:')
        for difference in differing:
            stage.show(f'    {difference}')
        return 1
    slots = (told.last - told.all_up) // SYNC_EVERY + 1
    stage.tell(
        f'As told: each of {slots} slots of sync was won and run once; the stopped run and the killed one\n'
        '    were each started once more, by another node, under a higher fence.'
    )
    return 0


def main() -> int:
    """Read the command line, and play."""
    parser = argparse.ArgumentParser('python -m example_project.demo', description='Play the quick start.')
    parser.add_argument('--redis', metavar='URL', help='meet on this Redis, instead of in a folder')
    parser.add_argument('--keep', action='store_true', help='keep the store and all that the nodes say')
    parser.add_argument('--no-color', action='store_true', help='print without colours')
    asked = parser.parse_args()
    colours = sys.stdout.isatty() and not asked.no_color and not os.environ.get('NO_COLOR')
    stage = Stage(colours=colours)
    with heeding(stage):
        name = f'anarchon-demo-{uuid.uuid4().hex[:8]}'
        folder = Path(tempfile.mkdtemp(prefix=f'{name}-'))
        place = Place(folder, asked.redis, name if asked.redis else 'anarchon')
        began = time.monotonic()
        status = run(stage, place, keep=asked.keep)
        kept = f' All of it is kept in {place.folder}.' if asked.keep else ''
        stage.show(f'\n    {time.monotonic() - began:.0f} s, exit status {status}.{kept}')
    return status


if __name__ == '__main__':
    sys.exit(main())
