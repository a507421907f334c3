"""What every test can ask for: real processes, and a private Redis."""

from __future__ import annotations

import logging
import signal

import pytest
from celery import _state
from hypothesis import HealthCheck, settings

from tests.databases import MariaDB, PostgreSQL
from tests.processes import Processes
from tests.rabbitmq import RabbitMQ
from tests.servers import RedisServer, required

# What a shell starts in the background ignores these, and so would all that is started here from the start.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# How long an example takes is the machine's affair. The rest is hypothesis' own: fixed seeds where CI is set.
settings.register_profile(
    'anarchon', deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile('anarchon')


def pytest_configure(config):
    """Answer a wrong ANARCHON_TEST_REQUIRE before the first test."""
    required()


@pytest.fixture(autouse=True)
def levels():
    """A worker or a beat in this process sets levels for all of it: the next test has them as they were."""
    names = (None, 'celery', 'anarchon_celery', 'anarchon_celery.runs')
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, logger.level, logger.propagate, logger.disabled) for logger in loggers]
    yield
    for logger, level, propagate, disabled in before:
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled


@pytest.fixture(autouse=True)
def current_app():
    """The last app made is Celery's current one, also when it is closed: the next test does not meet it."""
    before = _state._tls.current_app, _state.default_app
    yield
    _state._tls.current_app, _state.default_app = before


@pytest.fixture
def processes(tmp_path):
    """Start real processes, in the test's folder; none outlives the test."""
    mine = Processes(tmp_path)
    yield mine
    mine.close()


@pytest.fixture(scope='session')
def redis_server(tmp_path_factory):
    """A Redis of this test run's own. To stop or kill one, use ``own_redis_server``."""
    server = RedisServer(tmp_path_factory.mktemp('redis'))
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def redis_url(redis_server):
    """Database 0 of the run's Redis; all its 16 databases are empty: ``redis_server.url(1)`` for a broker."""
    redis_server.start()
    redis_server.flush()
    return redis_server.url()


@pytest.fixture
def own_redis_server(tmp_path):
    """A Redis of this test's own, to stop, kill, pause and start again."""
    server = RedisServer(tmp_path / 'redis')
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope='session')
def rabbitmq_server():
    """A RabbitMQ of this test run's own. To stop or kill one, use a ``RabbitMQ`` of the test's."""
    server = RabbitMQ()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture
def rabbitmq_url(rabbitmq_server):
    """A virtual host of the run's RabbitMQ, with nothing in it."""
    return rabbitmq_server.new_url()


@pytest.fixture(scope='session')
def postgresql_server():
    """A PostgreSQL of this test run's own. To stop or kill one, use a ``PostgreSQL`` of the test's."""
    server = PostgreSQL()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(scope='session')
def mariadb_server():
    """A MariaDB of this test run's own. To stop or kill one, use a ``MariaDB`` of the test's."""
    server = MariaDB()
    try:
        yield server.start()
    finally:
        server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Show the ends of the outputs of a failed test's processes.

    Where tests run beside each other, a report has to be text that can be sent: half a character cannot.
    """
    report = yield
    report.sections = [
        (name, text.encode('utf-8', 'backslashreplace').decode()) for name, text in report.sections
    ]
    mine = getattr(item, 'funcargs', {}).get('processes')
    if report.when == 'call' and report.failed and mine is not None:
        report.sections.extend(mine.tails())
    return report
