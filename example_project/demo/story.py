"""The story: the quick start, step by step, and what it claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anarchon_celery.protocol import Run, RunKey
from anarchon_celery.slots import iso
from anarchon_celery.stores import Store

from .stage import Failed, Node, Stage

#: As quick_start.py has them, in milliseconds.
SYNC_EVERY, LEASE, HEARTBEAT = 10_000, 6_000, 1_000


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
        stage.wait_for(r'stops: process \d+, the worker whose beat', since=mark, node=node.name)
        beat = self.beats[node.name]
        stage.tell(
            f'Nothing is handed over: the worker is gone. Its beat, process {beat}, saw that and stopped,\n'
            f'    too. Now the lease of {LEASE // 1000} s runs out.'
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
