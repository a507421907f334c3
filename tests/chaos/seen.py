"""What is seen of a cluster while it is struck, from its history: who is ready, and who runs what."""

from __future__ import annotations

from tests.chaos.cluster import Node
from tests.chaos.jobs import is_deaf, resource_of
from tests.chaos.journal import Follower
from tests.processes import Process


class Seen:
    """Reads the history as it is written."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._ready: dict[str, int] = {}  #: the process that was ready last, by node
        self._bodies: dict[int, dict] = {}  #: the last line of each process that runs one, by its pid
        self._written: dict[str, int] = {}  #: the highest fence that wrote, by resource

    def look(self) -> None:
        for line in self._follower.news():
            if line['what'] == 'ready':
                self._ready[line['node']] = line['main']
            elif line['what'] == 'body':
                self._bodies[line['pid']] = line
                if line['event'] == 'wrote':
                    resource = resource_of(line['job'], line['slot'])
                    self._written[resource] = max(line['fence'], self._written.get(resource, 0))

    def is_ready(self, node: Node) -> bool:
        self.look()
        return node.process.alive and self._ready.get(node.name) == node.process.pid

    def running(self, node: Node) -> list[dict]:
        """The last lines of the bodies that this process's children run."""
        self.look()
        pid = node.process.pid
        return [
            line for line in self._bodies.values()
            if line['main'] == pid and line['event'] in ('start', 'works', 'wrote')
        ]  # fmt: skip

    def busy_child(self, node: Node) -> int | None:
        pids = [line['pid'] for line in self.running(node) if lives(node.process, line['pid'])]
        return pids[-1] if pids else None

    def any_child(self, node: Node) -> int | None:
        return next((pid for pid in node.process.group if pid != node.process.pid), None)

    def about_to_write(self, node: Node) -> dict | None:
        """What it runs that never looks at its lease, and has not written."""
        deaf = [line for line in self.running(node) if is_deaf(line['job'])]
        return next((line for line in deaf if line['event'] != 'wrote'), None)

    def is_overtaken(self, line: dict) -> bool:
        """Whether somebody with a higher fence has written what it is about to write."""
        self.look()
        return self._written.get(resource_of(line['job'], line['slot']), 0) > line['fence']


def lives(process: Process, pid: int) -> bool:
    return pid in process.group
