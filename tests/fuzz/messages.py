"""Messages whose header nobody meant, met by a worker's code: a line each, and the next message is run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from celery.app import trace
from celery.signals import task_unknown
from hypothesis import strategies as st

from anarchon_celery import Scheduler, board, keeper, unknown, worker
from anarchon_celery.headers import HEADER
from anarchon_celery.returning import RETURNED
from tests.fuzz.configs import one_line
from tests.fuzz.rows import told
from tests.fuzz.values import ANY
from tests.test_task import Stage

#: What a header has; one that it has not; and beside it, how often it was given back.
FIELDS = [
    'v',
    'id',
    'job',
    'slot',
    'kind',
    'dispatch',
    'trigger',
    'task',
    'claimed',
    'lease',
    'heartbeat',
    'start_timeout',
    'stop_grace',
    'max_runtime',
    'overlap',
    'handover',
    'supervised',
    'arguments',
    'token',
    'x',
]
CHANGED = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=3, unique=True)
HOW = st.sampled_from(['changed', 'changed', 'changed', 'without', 'another', 'returned', 'another version'])

#: What may become of the run whose header was spoilt: beat sends it again, or its body was run.
NOT_LOST = ('queued', 'succeeded')

#: How often a message may come back because the machine stood still for as long as a store is waited for.
TIMES = 5


@dataclass(frozen=True, eq=False)
class Consumer:
    """Who tells of a task that its worker does not know."""

    app: Any


def messages_at_random(data: st.DataObject, url: str, empty: Callable[[], None]) -> None:
    """One header is spoilt: nothing escapes, what is said is a line, and another job's message is run."""
    empty()
    stage = Stage(anarchon_store=url)
    with as_in_a_worker():
        try:
            stage.task()(_body)
            spoilt, good = _dispatched(stage)
            _spoil(data, spoilt.headers)
            with told('anarchon_celery', 'celery', 'kombu', level=logging.INFO) as said:
                stage.execute(spoilt)
                _meet_as_unknown(stage, spoilt)
                stage.messages()  # what was given back
                _ends(stage, good, spoilt.headers)
            _is_told(said)
            (run,) = stage.store.runs(job='bad', limit=1)
            assert run.state in NOT_LOST, (run, spoilt.headers)
        finally:
            _let_go()
            stage.close()


def _ends(stage: Stage, message: Any, spoilt: object) -> None:
    """The run of this message succeeds; where the store took too long, by the message that was given back."""
    for _ in range(TIMES):
        stage.execute(message)
        (run,) = stage.store.runs(job='good', limit=1)
        if run.state != 'queued':
            break
        (message,) = stage.messages()
    assert 'succeeded' == run.state, (run, spoilt)


def _body(self: Any, *args: Any, **kwargs: Any) -> None:
    """What the task does: nothing."""


def _dispatched(stage: Stage) -> tuple[Any, Any]:
    """Let a beat send a message of each of two jobs; return them."""
    policy = {'lease': 10, 'heartbeat': 0.2}
    entry = {'task': 'proj.job', 'schedule': 1, 'options': {'anarchon': policy}}
    stage.app.conf.beat_schedule = {'bad': dict(entry), 'good': dict(entry)}
    beat = Scheduler(app=stage.app)
    stage.beats.append(beat)
    beat.tick()
    found = sorted(stage.messages(), key=lambda message: message.headers[HEADER]['job'])
    return found[0], found[-1]


def _spoil(data: st.DataObject, headers: dict[str, Any]) -> None:
    how, header = data.draw(HOW, 'how'), headers[HEADER]
    if how == 'another':
        headers[HEADER] = data.draw(ANY, 'header')
        return
    if how == 'returned':
        headers[RETURNED] = data.draw(ANY, 'returned')
    if how in ('returned', 'another version'):
        header['v'] = 2
    for name in data.draw(CHANGED, 'fields'):
        if how == 'without':
            header.pop(name, None)
        else:
            header[name] = data.draw(ANY, name)


def _meet_as_unknown(stage: Stage, message: Any) -> None:
    """The message as a worker meets it that does not know its task."""
    consumer = Consumer(stage.app)
    name, id = message.headers['task'], message.headers['id']
    for receiver, answer in task_unknown.send(sender=consumer, message=message, name=name, id=id, exc=None):
        assert answer is None, (receiver, answer)
    with (room := unknown._room_of(stage.app))._lock:
        held, room._held = room._held, []
    for each in held:
        str(each.what), each.reason


def _is_told(said: list[logging.LogRecord]) -> None:
    assert any(record.name.startswith('anarchon') for record in said)
    for record in said:
        one_line(record.getMessage())
        assert record.name.startswith('anarchon') or record.levelno < logging.ERROR, record.getMessage()
        assert not record.exc_info, record.getMessage()
        record.getMessage().encode()  # as any handler does


@contextmanager
def as_in_a_worker() -> Iterator[None]:
    """What every real worker process does first; see the fixture of this name."""
    with pytest.MonkeyPatch.context() as patch:
        trace._install_stack_protection()
        patch.setenv(board.WHERE, '')
        for where, name, value in (
            (trace, '_localized', []),
            (keeper, 'LOOK_EVERY', 10),
            (keeper, '_keepers', {}),
            (worker, '_board', board.make()),
            (board.Board, 'parent', 41907),
        ):
            patch.setattr(where, name, value)
        try:
            yield
        finally:
            trace.reset_worker_optimizations()


def _let_go() -> None:
    for _, kept in keeper._keepers.values():
        for each in list(kept._leases.values()):
            kept.let_go(each)
        kept.store.close()
