"""What the walk cannot reach (days, a clock that goes back, answers for people) the tests of the store find.

The tests run in one process, each only with the breaks of functions that it goes through.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from .loading import broken, found
from .mutants import Mutant

#: The transitions' own tests, and the contract of the stores on the memory store.
TESTS = (
    'tests/test_transitions.py', 'tests/test_young_store.py', 'tests/test_stores.py',
    '-k', 'test_transitions or [memory] or [memory-',  # not 'memory' alone: names have it, on other stores
)  # fmt: skip


class _Tries:
    """Runs the tests as they are, then with each rule broken until one fails."""

    def __init__(self, mutants: Iterable[Mutant]):
        self.mutants = list(mutants)
        self.found: dict[str, str] = {}
        self.wrong: list[str] = []

    def pytest_configure(self) -> None:
        from hypothesis import settings  # pytest has to meet it first

        settings.register_profile('model', database=None, derandomize=True, max_examples=20)
        settings.load_profile('model')

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        went_through = {item: self._watched(item) for item in session.items}
        signal.signal(signal.SIGVTALRM, _is_endless)
        for mutant in self.mutants:
            function = found(importlib.import_module(f'anarchon_celery.{mutant.module}'), mutant.function)
            items = [item for item, codes in went_through.items() if id(function.__code__) in codes]
            with broken(function, mutant.text):
                failed = next((item for item in items if _fails(item)), None)
            if failed is not None:
                self.found[mutant.name] = failed.nodeid
        return True

    def _watched(self, item: pytest.Item) -> set[int]:
        codes: set[int] = set()
        sys.setprofile(lambda frame, event, _: codes.add(id(frame.f_code)) if event == 'call' else None)
        try:
            if _fails(item):
                self.wrong.append(item.nodeid)
        finally:
            sys.setprofile(None)
        return codes


def _fails(item: pytest.Item) -> bool:
    item._initrequest()  # type: ignore[attr-defined]
    signal.setitimer(signal.ITIMER_VIRTUAL, 3)
    try:
        return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _is_endless(*_: object) -> None:
    raise TimeoutError('it goes on for ever')


def found_by_tests(mutants: Iterable[Mutant]) -> dict[str, str]:
    """Which of these the tests find, and by which test first."""
    os.chdir(Path(__file__).parents[2])
    tries = _Tries(mutants)
    pytest.main([*TESTS, '-q', '-p', 'no:cacheprovider', '-o', 'timeout=0', '--no-header'], plugins=[tries])
    if tries.wrong:
        raise AssertionError(f'these fail without a break: {tries.wrong}')
    return tries.found
