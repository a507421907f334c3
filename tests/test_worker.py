"""The worker's parent as Celery meets it: its settings, its board, its stops, and its requests."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.signals import worker_shutting_down

from anarchon_celery import board, worker


@pytest.fixture
def made(monkeypatch):
    """The board of a worker whose parent is this process."""
    monkeypatch.setenv(board.WHERE, '')
    made = board.make()
    monkeypatch.setattr(worker, '_board', made)
    monkeypatch.setattr(worker, '_is_child', False)
    return made


def test_a_stop_is_one_byte_on_the_board(made):
    assert not worker.stopping()
    worker_shutting_down.send(sender='celery@a', sig='SIGTERM', how='Warm', exitcode=0)
    assert worker.stopping()


def test_only_a_child_of_the_pool_of_this_worker_has_a_place(made, monkeypatch):
    assert worker.place() is None  # the parent itself
    monkeypatch.setattr(worker, 'current_process', lambda: SimpleNamespace(index=3))
    assert worker.place() is None  # a child of another parent
    monkeypatch.setattr(os, 'getppid', lambda: made.parent)
    assert 3 == worker.place().index


def test_a_child_that_its_worker_left_behind_stops(made, monkeypatch):
    monkeypatch.setattr(worker, 'current_process', lambda: SimpleNamespace(index=3))
    monkeypatch.setattr(os, 'getppid', lambda: made.parent)
    assert worker.place() is not None
    assert not worker.stopping()
    monkeypatch.setattr(os, 'getppid', lambda: 1)
    assert worker.stopping()


def test_a_worker_with_settings_that_cannot_be_meant_does_not_start():
    app = Celery('proj', broker='memory://', set_as_current=False)
    app.conf.anarchon_lease = 'soon'
    with pytest.raises(SystemExit, match="anarchon: anarchon_lease='soon': a duration"):
        worker._prepare(sender=SimpleNamespace(app=app))
