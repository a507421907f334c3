"""Real processes for tests: started, watched by what they print, stopped, killed, paused, never left over.

Each is the leader of a session and a process group of its own, which its children share: ``group=True``
means all of them. What it prints goes to a file; tests wait for a line of that file, not for a while.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Found = TypeVar('Found')


def wait_until(
    look: Callable[[], Found | None], deadline: float = 15, *, why: Callable[[], str] = str
) -> Found:
    """Look until the answer is true and return it, or raise with ``why()`` after the deadline."""
    began = time.monotonic()
    while True:
        looked = time.monotonic()  # before the last look
        if found := look():
            return found
        if looked > began + deadline:
            raise AssertionError(f'waited {deadline:g} s in vain: {why() or look}')
        # Some look at all runs there are: who waits for long leaves the processor to what is waited for.
        time.sleep(max(0.02 if looked < began + 1 else 0.05, time.monotonic() - looked))


class Process:
    """One command as a real process; its output is in ``folder/name.log``."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        name: str,
        folder: Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Prepare it; ``env`` is laid over this process's environment, None takes a variable out."""
        self.command = [os.fspath(word) for word in command]
        self.name = name
        self.log = folder / f'{name}.log'
        self.cwd = cwd or folder
        overlaid = {**os.environ, 'PYTHONUNBUFFERED': '1', **(env or {})}
        self.env = {key: value for key, value in overlaid.items() if value is not None}
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f'<{self.name} {self._process.pid if self._process else "not started"}>'

    def start(self) -> Process:
        """Start it, also again after its end: what is left of its group is killed, and its log goes on."""
        if self.alive:
            raise AssertionError(f'{self.name} is running already')
        self.close()
        with self.log.open('ab') as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env=self.env,
                start_new_session=True,
            )
        _guard.watch(self.pid)
        return self

    # How it is

    @property
    def pid(self) -> int:
        """Its process id, which is its group's id too."""
        if self._process is None:
            raise AssertionError(f'{self.name} was not started')
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; then its exit status, or minus the signal that ended it."""
        if self._process is not None and self._process.returncode is not None:
            return self._process.returncode
        # It is looked at but not reaped before close(): until then nobody else can get its id.
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended (a paused process is alive)."""
        return self._process is not None and self.status is None

    @property
    def group(self) -> list[int]:
        """The ids of all living processes of its group, orphans included."""
        return sorted(pid for pid, (group, _state) in _living().items() if group == self.pid)

    # What it said

    @property
    def output(self) -> str:
        """All it has printed so far."""
        return self.log.read_text(errors='replace') if self.log.exists() else ''

    def mark(self) -> int:
        """Where the output ends now: ``wait_for(..., after=mark)`` looks only at what comes later."""
        return len(self.output)

    def wait_for(self, pattern: str, deadline: float = 15, *, after: int = 0) -> re.Match[str]:
        """Wait until its output has the pattern (``^`` and ``$`` mean a line's); return the match."""
        seen = re.compile(pattern, re.MULTILINE)

        def look() -> re.Match[str] | None:
            ended = not self.alive  # before the look at its output
            match = seen.search(self.output[after:])
            if ended and not match:
                raise AssertionError(f'{self.name} ended with status {self.status} without {missing()}')
            return match

        def missing() -> str:
            return f'{seen.pattern!r} in the output of {self.name}\n{self.tail()}'

        return wait_until(look, deadline, why=missing)

    def wait(self, deadline: float = 15) -> int:
        """Wait for its end; return its status."""
        wait_until(lambda: not self.alive, deadline, why=lambda: f'{self.name} did not end\n{self.tail()}')
        assert self.status is not None
        return self.status

    def tail(self, lines: int = 40) -> str:
        """The end of its output, for people."""
        return '\n'.join(f'    {self.name} | {line}' for line in self.output.splitlines()[-lines:])

    # What is done to it

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to it, or to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def stop(self, deadline: float = 45, *, group: bool = False) -> int:
        """SIGTERM, and wait for its end; return its status.

        billiard may wait for up to half a minute before a worker ends one of whose children was killed.
        """
        self.signal(signal.SIGTERM, group=group)
        return self.wait(deadline)

    def kill(self, *, group: bool = False) -> int:
        """SIGKILL, and wait for its end; without ``group`` its children live on as orphans."""
        self.signal(signal.SIGKILL, group=group)
        return self.wait()

    def suspend(self, *, group: bool = False) -> None:
        """SIGSTOP, and wait until it takes effect: it does nothing more until ``resume``."""
        self.signal(signal.SIGSTOP, group=group)
        paused = self.group if group else [self.pid]
        wait_until(lambda: all(_living().get(pid, (0, 'T'))[1] == 'T' for pid in paused))

    def resume(self, *, group: bool = False) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT, group=group)

    def close(self) -> None:
        """Kill what is left of its group, and reap it; harmless when there is nothing left."""
        if self._process is None or self._process.returncode is not None:
            return
        self.signal(signal.SIGKILL, group=True)
        wait_until(lambda: not self.group, why=lambda: f'{self.name} left {self.group}')
        self._process.wait()
        _guard.forget(self.pid)


class Processes:
    """The processes of one test: all closed at its end, their output's ends shown when it fails."""

    def __init__(self, folder: Path) -> None:
        """Keep all outputs in one folder, which is also where the processes run."""
        self.folder = folder
        self.all: list[Process] = []

    def start(
        self,
        *command: str | os.PathLike[str],
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a command."""
        name = name or f'{Path(command[0]).name}-{len(self.all) + 1}'
        if any(process.name == name for process in self.all):
            raise AssertionError(f'two processes of one test are called {name}')
        process = Process(command, name=name, folder=self.folder, env=env, cwd=cwd)
        self.all.append(process)
        return process.start()

    def python(self, *arguments: str | os.PathLike[str], **how) -> Process:
        """Start this Python with these arguments; ``how`` as for start()."""
        return self.start(sys.executable, *arguments, **{'name': f'python-{len(self.all) + 1}', **how})

    def celery(self, *arguments: str, **how) -> Process:
        """Start ``celery`` with these arguments; ``how`` as for start()."""
        return self.python('-m', 'celery', *arguments, **{'name': f'celery-{len(self.all) + 1}', **how})

    def tails(self) -> list[tuple[str, str]]:
        """What pytest shows of them when a test fails."""
        return [(f'output of {process.name}', process.tail()) for process in self.all]

    def close(self) -> None:
        """Close all, the last one first."""
        with contextlib.ExitStack() as stack:
            for process in self.all:
                stack.callback(process.close)


class _Guard:
    """Kills the groups still known to it when the tests' process itself dies, however it dies."""

    _ORDERS = """if True:
        import os, signal, sys
        groups = set()
        for line in sys.stdin:
            (groups.add if line[0] == '+' else groups.discard)(int(line[1:]))
        for group in groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, group: int) -> None:
        self._tell(f'+{group}\n')

    def forget(self, group: int) -> None:
        self._tell(f'-{group}\n')

    def _tell(self, order: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, '-c', self._ORDERS], stdin=subprocess.PIPE, start_new_session=True
            )
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), order.encode())


_guard = _Guard()


def _living() -> dict[int, tuple[int, str]]:
    """Of each process that is not a zombie, its group and its state, by its id."""
    found = {}
    for entry in Path('/proc').glob('[0-9]*/stat'):
        with contextlib.suppress(OSError):  # it ended while we looked
            state, _parent, group = entry.read_text().rpartition(')')[2].split()[:3]
            if state != 'Z':
                found[int(entry.parent.name)] = (int(group), state)
    return found
