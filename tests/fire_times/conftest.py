"""Nodes on one store and one queue, and a clock that a test moves, as the tests of beat have them."""

from __future__ import annotations

import pytest

from tests.fire_times.play import Play
from tests.test_scheduler import clock, stage

__all__ = ["clock", "play", "stage"]


@pytest.fixture
def play(stage):
    return Play(stage)
