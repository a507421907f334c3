"""What the store makes of a call, by the rules as they are, or by broken ones.

Each step is carried out once for each store that it can meet: most come many times. With a rule broken, only
the steps that it does otherwise make a difference: wherever there are none, all is as it was.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .loading import broken, found, rules
from .mutants import Mutant

_numbers: dict[Any, int] = {}  # of each record there ever was: numbers are quick to compare
_records: list[Any] = []


def numbered(record: Any) -> int:
    """The number of a record."""
    if (number := _numbers.get(record)) is None:
        number = _numbers[record] = len(_records)
        _records.append(record)
    return number


def record(number: int) -> Any:
    """The record with that number."""
    return _records[number]


class Wrong(Exception):
    """What must not be."""


Step = tuple  # the scene, the verb, the records, the origin, the instant, the arguments

_steps: dict[Step, int] = {}  # each step there ever was, by its number
_asked: list[Step] = []
_done: dict[int, Any] = {}  # what came of it
_otherwise: dict[int, Any] | None = None  # what a broken rule makes of it
_went_through: dict[int, set[int]] = {}  # its functions, by the ids of their codes
_changed = 0  # the one that is broken
used: list[int] = []  #: the steps that were asked for since this was emptied


@contextmanager
def with_broken(mutant: Mutant) -> Iterator[None]:
    """Have the store go by a broken rule."""
    global _otherwise, _changed
    function = found(getattr(rules(), mutant.module), mutant.function)
    _otherwise, _changed = {}, id(function.__code__)
    before = signal.signal(signal.SIGVTALRM, _is_endless)
    try:
        with broken(function, mutant.text):
            yield
    finally:
        _otherwise = None
        signal.signal(signal.SIGVTALRM, before)


def _is_endless(*_: object) -> None:
    raise TimeoutError('it goes on for ever')


def differs(step: int) -> bool:
    """Whether the broken rule makes something else of this step."""
    assert _otherwise is not None
    if _changed not in _went_through[step]:
        return False
    if step not in _otherwise:
        _otherwise[step] = _tried(_asked[step])
    return bool(_otherwise[step] != _done[step])


def carried_out(step: Step) -> tuple:
    """What a step answers, and what it leaves: the job, the runs, the origin."""
    if (number := _steps.get(step)) is None:
        number = _steps[step] = len(_asked)
        _asked.append(step)
    used.append(number)
    if _otherwise is None:
        if (result := _done.get(number)) is None:
            result = _done[number] = _watched(number)
    elif (result := _otherwise.get(number)) is None:
        is_as_it_was = number in _done and _changed not in _went_through[number]
        result = _otherwise[number] = _done[number] if is_as_it_was else _tried(step)
    if isinstance(result, _Failed):
        raise Wrong(result)
    return result


class _Failed(str):
    """What went wrong with a step."""


def _watched(number: int) -> Any:
    """Carry a step out, and note through which functions it goes."""
    codes: set[int] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: codes.add(id(frame.f_code)) if event == 'call' else None)
    try:
        return _tried(_asked[number])
    finally:
        sys.setprofile(before)
        _went_through[number] = codes


def _tried(step: Step) -> Any:
    if _otherwise is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 1)
    try:
        return _carried_out(*step)
    except Wrong as wrong:
        return _Failed(wrong.args[0])
    except Exception as reason:
        return _Failed(f'{step[1]}: {type(reason).__name__}: {reason}')
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _carried_out(
    scene: Any, verb: str, job: int, runs: tuple[int, ...], origin: Any, known_as: str, now: int,
    arguments: tuple, named: tuple,
) -> tuple:  # fmt: skip
    ledger = rules().ledger.Ledger(
        [] if (known := _records[job]) is None else [known], [_records[run] for run in runs], origin=origin,
        next_identity=chr(ord(origin.identity) + 1),
    )  # fmt: skip
    ledger.known_as = known_as
    rules().transitions.MAX_DISPATCHES = scene.max_dispatches
    transition = getattr(rules().transitions, verb)
    given = [list(it) if type(it) is tuple else it for it in arguments]

    def act() -> Any:
        return transition(ledger, now, *given, **dict(named))

    answer = act()
    if scene.twice and verb != 'resume':
        _carried_out_again(verb, ledger, answer, act)
    for was in (_records[run] for run in runs):
        run = ledger.runs.get(was.key)
        if is_over(was) and not (was == run or (run is None and verb in ('forget', 'forget_job'))):
            raise Wrong(f'{verb} changes a run that is over: {was.state} becomes {run and run.state}')
        if run is None and not is_over(was) and was.state not in ('published', 'abandoned'):
            raise Wrong(f'{verb} drops a run that is {was.state}')
    if len(ledger.jobs) > 1:
        raise Wrong(f'{verb} makes jobs: {sorted(ledger.jobs)}')
    left = next(iter(ledger.jobs.values()), None)
    answer = tuple(answer) if isinstance(answer, list) else answer
    return answer, numbered(left), tuple(map(numbered, ledger.runs.values())), ledger.origin


def is_over(run: Any) -> bool:
    """Whether a run has ended, and no late message may start it: in words of its own, not in the rules'."""
    if run.state == 'abandoned':
        return not run.unstarted
    return run.state in ('succeeded', 'failed', 'skipped', 'missed', 'cancelled')


def _carried_out_again(verb: str, ledger: Any, answer: Any, repeat: Callable[[], Any]) -> None:
    """The same call, made again after a lost answer, has to answer the same and change nothing."""
    jobs, runs = dict(ledger.jobs), dict(ledger.runs)
    repeated = repeat()
    same = _won(answer) == _won(repeated) if verb == 'claim' else answer == repeated
    if not same:
        raise Wrong(f'{verb}, made again, answers {repeated} after {answer}')
    if (runs, jobs) != (ledger.runs, ledger.jobs):
        raise Wrong(f'{verb}, made again, writes again')


def _won(answer: Any) -> list[Any]:
    """The runs that a claim won."""
    return [claim.key for claimed in answer for claim in claimed.claims if claim.answer == 'won']
