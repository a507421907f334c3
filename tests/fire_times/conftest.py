"""The stage of the tests of beat: nodes on one store and one queue, and a clock that a test moves."""

from __future__ import annotations

from tests.test_scheduler import clock, stage

__all__ = ["clock", "stage"]
