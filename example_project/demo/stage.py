"""The stage and who is on it: nodes as real processes, what they say, and what the narrator says."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anarchon_celery.slots import from_iso

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
        self.nodes: Sequence[Node] = ()
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
        for node in self.nodes:
            node.check()

    def _paint(self, text: str, code: str) -> str:
        return f'\033[{code}m{text}\033[0m' if self.colours else text

    def _print(self, text: str) -> None:
        with self._printing:
            try:
                print(text, flush=True)
            except BrokenPipeError:  # nobody reads any more
                sys.stdout = None  # print() does nothing from here on
                self.interrupt(signal.SIGPIPE)


class Node:
    """A node: a worker with a beat, in a process group of its own."""

    COMMAND = (
        sys.executable, '-m', 'celery', '-A', 'example_project.demo.app', 'worker', '-B',
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
        process = self.process
        assert process is not None
        self.stage.wait_until(lambda: process.poll() is not None, f'node {self.name} ends')
        return process.returncode

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
