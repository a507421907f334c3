"""RabbitMQ for tests, a private one: from the installed binaries, on free ports.

As in :mod:`tests.servers`: where it is not installed the test is skipped, by name, or fails where
``ANARCHON_TEST_REQUIRE`` asks for it. It brings its own epmd, the directory of Erlang's nodes, so that
nothing of it is left when it is closed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.processes import Process, wait_until
from tests.servers import free_port, require

#: Debian's rabbitmq-server on the PATH changes the user and forgets what it is told; this is what it calls.
DEBIANS = Path('/usr/lib/rabbitmq/bin')


class RabbitMQ:
    """One broker; the port stays the same over stop, kill and start, and durable queues stay."""

    def __init__(self) -> None:
        """Choose ports; nothing runs yet."""
        found = Path(require('rabbitmq'))
        self.tools = DEBIANS if (DEBIANS / 'rabbitmq-server').exists() else found.parent
        self.port, self._epmd_port = free_port(), free_port()
        self.folder = Path(tempfile.mkdtemp(prefix='rabbitmq-'))
        (self.folder / 'plugins').write_text('[].\n')
        self.env = self._environment()
        self.epmd = Process(
            [shutil.which('epmd') or 'epmd', '-address', '127.0.0.1', '-port', str(self._epmd_port)],
            name='epmd', folder=self.folder,
        )  # fmt: skip
        self.process = Process(
            [self.tools / 'rabbitmq-server'], name='rabbitmq', folder=self.folder, env=self.env
        )
        self._vhosts = 0

    def start(self) -> RabbitMQ:
        """Start it and wait until it answers."""
        if not self.epmd.alive:
            self.epmd.start()
        if not self.running:
            mark = self.process.mark()
            self.process.start().wait_for('startup complete', 60, after=mark)
        self.resume()
        wait_until(self._answers)
        return self

    def stop(self) -> None:
        """SIGTERM: it writes down what it has."""
        self.process.signal(15, group=True)
        self.process.wait(30)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill(group=True)

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and get no answer."""
        self.process.suspend(group=True)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume(group=True)

    def close(self) -> None:
        """Kill it if need be, and remove its files."""
        self.process.close()
        self.epmd.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether its process lives, paused or not."""
        return self.process.alive

    def url(self, vhost: str = '/') -> str:
        """Return the URL of one of its virtual hosts."""
        return f'amqp://guest:guest@127.0.0.1:{self.port}/{"" if vhost == "/" else vhost}'

    def new_url(self) -> str:
        """Make a virtual host, in which there is nothing yet, and return its URL."""
        self._vhosts += 1
        name = f'test-{self._vhosts}'
        self.control('add_vhost', name)
        self.control('set_permissions', '-p', name, 'guest', '.*', '.*', '.*')
        return self.url(name)

    def control(self, *words: str) -> str:
        """Run ``rabbitmqctl`` and return what it says."""
        command = [os.fspath(self.tools / 'rabbitmqctl'), '--quiet', *words]
        done = subprocess.run(
            command, env=self.process.env, cwd=self.folder, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        place = os.fspath(self.folder)
        return {
            'HOME': place,  # for the cookie by which its tools know it
            'ERL_EPMD_PORT': str(self._epmd_port),
            'RABBITMQ_NODENAME': 'test@localhost',
            'RABBITMQ_NODE_IP_ADDRESS': '127.0.0.1',
            'RABBITMQ_NODE_PORT': str(self.port),
            'RABBITMQ_DIST_PORT': str(free_port()),
            'RABBITMQ_MNESIA_BASE': f'{place}/data',
            'RABBITMQ_LOG_BASE': place,
            'RABBITMQ_LOGS': '-',
            'RABBITMQ_ENABLED_PLUGINS_FILE': f'{place}/plugins',
            'RABBITMQ_CONF_ENV_FILE': f'{place}/none',
            'RABBITMQ_CONFIG_FILE': f'{place}/none',
            # The schedulers of Erlang wait busily by default: here are two cores for all.
            'RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS': '+S 1 +sbwt none',
        }

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', self.port), 5) as client:
            client.settimeout(5)
            client.sendall(b'AMQP\x00\x00\x09\x01')
            return bool(client.recv(1))
        return False
