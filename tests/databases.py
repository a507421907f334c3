"""PostgreSQL and MariaDB for tests, private ones: from the installed binaries, on free ports.

As in :mod:`tests.servers`: a server that is not installed skips the test, by name, or fails it where
``ANARCHON_TEST_REQUIRE`` asks for it. Their files are in folders of their own, which the user they run
as may enter; with ``durable=False`` they do not wait for the disk, as most tests need not.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Process, wait_until
from tests.servers import free_port, require


class Database:
    """A database server; the port stays the same over stop, kill and start."""

    kind: str
    user: str  # whom it runs as where the tests run as root, which it refuses to be

    def __init__(self, *, durable: bool = False, tls: bool = False) -> None:
        """Make its files; nothing runs yet."""
        self.binary = Path(require(self.kind)).resolve()  # its tools are beside it
        self.durable, self.tls = durable, tls
        self._kept: Any = None
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f'{self.kind}-'))
        self.data = self.folder / 'data'
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(self.folder, self.user)
        self.certificate, self.key = self.folder / 'certificate.pem', self.folder / 'key.pem'
        try:
            if tls:
                self._certify()
            self._install()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.process = Process(self.as_user(*self._command()), name=self.kind, folder=self.folder)

    def start(self) -> Database:
        """Start it and wait until it answers."""
        if not self.running:
            self.process.start()
        self.resume()
        wait_until(self._answers, 60, why=self.process.tail)
        return self

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        others = self._children()
        self.process.kill()
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not [pid for pid in others if _lives(pid)], 20)

    def suspend(self) -> None:
        """SIGSTOP to all its processes: connections stay open and get no answer."""
        self.process.suspend()
        for pid in self._children():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.process.resume()

    def close(self) -> None:
        """Kill it, and remove its files."""
        self._forget()
        if self.running:
            self.kill()
        self.process.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether its process lives, paused or not."""
        return self.process.alive

    def url(self, database: str = 'test') -> str:
        """Return the URL of one of its databases."""
        raise NotImplementedError

    def store_url(self) -> str:
        """Return the URL for a store of ours, of which tests make thousands."""
        return self.url()

    def connect(self, database: str = 'test') -> Any:
        """Return a plain connection that commits each statement."""
        raise NotImplementedError

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Execute one statement on a connection of its own, and return its rows."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def empty(self, *prefixes: str) -> None:
        """Empty the tables of prefixes, where there are any: that is faster than to make them anew."""
        try:
            self._empty(prefixes)
        except Exception:  # the server was stopped meanwhile
            self._forget()
            self._empty(prefixes)

    def _empty(self, prefixes: Iterable[str]) -> None:
        if self._kept is None:
            self._kept = self.connect()
        with self._kept.cursor() as cursor:
            # Of its own database: MariaDB looks into all the others too, if it may.
            cursor.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema IN ('public', 'test')"
            )
            there = {name for (name,) in cursor.fetchall()}
            for prefix in prefixes:
                for name in (f'{prefix}_{name}' for name in ('meta', 'jobs', 'runs', 'nodes')):
                    if name in there:
                        cursor.execute(f'DELETE FROM {self.quoted(name)}')

    def _forget(self) -> None:
        """Give up the connection that is kept for emptying tables: to make one takes longer than that."""
        kept, self._kept = self._kept, None
        if kept is not None:
            with contextlib.suppress(Exception):
                kept.close()

    def quoted(self, name: str) -> str:
        """Return a name as SQL has it."""
        return f'"{name}"'

    def _certify(self) -> None:
        """Make a certificate that is its own authority."""
        self._once(
            require_tool('openssl'), 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-batch',
            '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1',
            '-out', str(self.certificate), '-keyout', str(self.key),
        )  # fmt: skip

    def _install(self) -> None:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def as_user(self, *words: str) -> list[str]:
        """Return a command as one of the user that the server runs as."""
        if os.geteuid() != 0:
            return list(words)
        return ['setpriv', f'--reuid={self.user}', f'--regid={self.user}', '--init-groups', *words]

    def _once(self, *words: str) -> None:
        done = subprocess.run(
            self.as_user(*words), cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _answers(self) -> bool:
        if not self.running:
            raise AssertionError(f'{self.kind} ended:\n{self.process.tail()}')
        with contextlib.suppress(Exception):
            return self.run('SELECT 1') == [(1,)]
        return False

    def _children(self) -> list[int]:
        """Its processes, which have sessions of their own."""
        everyone = map(int, filter(str.isdecimal, os.listdir('/proc')))
        return [pid for pid in everyone if _parent(pid) == self.process.pid]


def _stat(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return []


def _parent(pid: int) -> int | None:
    return int(found[1]) if (found := _stat(pid)) else None


def _lives(pid: int) -> bool:
    return bool(found := _stat(pid)) and found[0] not in 'ZX'


class PostgreSQL(Database):
    """A PostgreSQL of a test's own."""

    kind, user = 'postgresql', 'postgres'

    def __init__(self, *, copy_of: PostgreSQL | None = None, **how: bool) -> None:
        """Make its files; as a copy of another one it is a standby of that."""
        self.copy_of = copy_of
        super().__init__(**how)

    def url(self, database: str = 'test') -> str:
        return f'postgresql+psycopg://{self._owner}@127.0.0.1:{self.port}/{database}'

    def connect(self, database: str = 'test') -> Any:
        psycopg = pytest.importorskip('psycopg')
        return psycopg.connect(
            f'host=127.0.0.1 port={self.port} user={self._owner} dbname={database} connect_timeout=3',
            autocommit=True,
        )

    @property
    def _owner(self) -> str:
        return self.user if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

    def _install(self) -> None:
        if self.copy_of is not None:
            self._once(
                str(self.binary.with_name('pg_basebackup')), '-D', str(self.data), '-R', '-c', 'fast',
                '-d', f'host=127.0.0.1 port={self.copy_of.port} user={self._owner}',
            )  # fmt: skip
            return
        self._once(
            str(self.binary.with_name('initdb')), '-D', str(self.data), '-E', 'UTF8', '--locale=C.UTF-8',
            '-A', 'trust', *([] if self.durable else ['-N']),
        )  # fmt: skip

    def _command(self) -> list[str]:
        settings: dict[str, Any] = {
            'port': self.port, 'listen_addresses': '127.0.0.1', 'unix_socket_directories': self.folder,
            'max_connections': 200, 'fsync': 'on' if self.durable else 'off', 'log_lock_waits': 'on',
            'timezone': 'America/New_York',
        }  # fmt: skip
        if self.tls:
            settings |= {'ssl': 'on', 'ssl_cert_file': self.certificate, 'ssl_key_file': self.key}
        words = [word for name, value in settings.items() for word in ('-c', f'{name}={value}')]
        return [str(self.binary), '-D', str(self.data), *words]

    def start(self) -> Database:
        super().start()
        with contextlib.closing(self.connect('postgres')) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'test'").fetchall()
            if not self.copy_of and not found:
                connection.execute('CREATE DATABASE test')
        return self

    def _answers(self) -> bool:
        if not self.running:
            # After a kill the memory it shared may still be in use for a moment.
            self.process.start()
        with contextlib.suppress(Exception), contextlib.closing(self.connect('postgres')) as connection:
            return bool(connection.execute('SELECT 1').fetchall())
        return False

    def deadlocks(self) -> int:
        """Count the deadlocks there were."""
        return int(self.run("SELECT sum(deadlocks) FROM pg_stat_database")[0][0])


class MariaDB(Database):
    """A MariaDB of a test's own."""

    kind, user = 'mariadb', 'mysql'

    def url(self, database: str = 'test') -> str:
        return f'mysql+pymysql://root@127.0.0.1:{self.port}/{database}'

    def store_url(self) -> str:
        # Else PyMySQL reads all the authorities that the machine trusts, for each connection.
        return f'{self.url()}?ssl-mode=DISABLED'

    def connect(self, database: str = 'test') -> Any:
        pymysql = pytest.importorskip('pymysql')
        return pymysql.connect(
            host='127.0.0.1', port=self.port, user='root', database=database, autocommit=True,
            connect_timeout=3, charset='utf8mb4',
            ssl_disabled=True,  # see store_url()
        )  # fmt: skip

    def quoted(self, name: str) -> str:
        return f'`{name}`'

    def _install(self) -> None:
        self._once(
            require_tool('mariadb-install-db'), '--no-defaults', f'--datadir={self.data}',
            f'--tmpdir={self.folder}', '--auth-root-authentication-method=normal', '--skip-name-resolve',
        )  # fmt: skip

    def _command(self) -> list[str]:
        settings: dict[str, Any] = {
            'datadir': self.data, 'tmpdir': self.folder, 'port': self.port, 'bind-address': '127.0.0.1',
            'socket': self.folder / 's',
            'pid-file': self.folder / 'pid', 'innodb-flush-log-at-trx-commit': 1 if self.durable else 0,
            'max-connections': 200, 'default-time-zone': '-03:00', 'innodb-buffer-pool-size': '64M',
            'innodb-print-all-deadlocks': 'ON',
        }  # fmt: skip
        if self.tls:
            settings |= {'ssl-cert': self.certificate, 'ssl-key': self.key}
        words = [f'--{name}={value}' for name, value in settings.items()]
        return [str(self.binary), '--no-defaults', '--skip-name-resolve', *words]

    def deadlocks(self) -> int:
        """Count the deadlocks there were."""
        return int(self.run("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'")[0][1])


def require_tool(name: str) -> str:
    """Return the path of a tool that comes with a server."""
    found = shutil.which(name)
    assert found, f'{name} is not installed'
    return found


DATABASES = {'postgresql': PostgreSQL, 'mariadb': MariaDB}


class PgBouncer:
    """A pooler that hands out a server's connections by transaction: two, however many ask."""

    def __init__(self, server: PostgreSQL) -> None:
        """Prepare it; skips the test where it is not installed."""
        places = os.pathsep.join([os.environ.get('PATH', ''), '/usr/sbin'])
        if not (binary := shutil.which('pgbouncer', path=places)):
            pytest.skip('pgbouncer is not installed')
        self.server, self.port = server, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix='pgbouncer-'))
        user = server.url().partition('//')[2].partition('@')[0]
        settings = {
            'listen_addr': '127.0.0.1', 'listen_port': self.port, 'unix_socket_dir': '', 'auth_type': 'any',
            'pool_mode': 'transaction', 'default_pool_size': 2, 'admin_users': user,
        }  # fmt: skip
        lines = [f'{name} = {value}' for name, value in settings.items()]
        address = f'test = host=127.0.0.1 port={server.port} dbname=test user={user}'
        file = self.folder / 'pgbouncer.ini'
        file.write_text('\n'.join(['[databases]', address, '[pgbouncer]', *lines]))
        self.folder.chmod(0o755)
        self.process = Process(server.as_user(binary, str(file)), name='pgbouncer', folder=self.folder)
        self.url = server.url().replace(f':{server.port}', f':{self.port}')

    def start(self) -> PgBouncer:
        """Start it and wait until it listens."""
        self.process.start().wait_for('process up')
        return self

    def close(self) -> None:
        """Kill it, and remove its files."""
        self.process.close()
        shutil.rmtree(self.folder, ignore_errors=True)
