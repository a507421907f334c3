"""The rules, each broken in turn by hand: what the walk has to find, or it proves nothing.

Three breaks are not here, since nothing tells them from the rules:

- A start from ``claimed``, ``queued`` or ``released`` that ignores a stop flag, or a pause. Only what runs is
  asked to stop, and a run of a paused job is ``running`` or ``buffered``, whatever happens: walls hold both.
- A job of a wiped store that does not learn its floor from the cursor of who registers it. Its schedule does,
  in the same step (``_first_sight``), and the job's floor is raised to its schedule's (``with_schedule``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import breaks_of_runs, breaks_of_slots, breaks_of_time
from .loading import changed, source


@dataclass(frozen=True)
class Mutant:
    """One rule, broken: for a function of a module stands this text."""

    name: str
    module: str
    function: tuple[str, ...]
    text: str
    left_to_tests: bool = False  #: where the walk has not what it takes: days, hours, the time since a wipe


def by_hand() -> Iterator[Mutant]:
    """The breaks that somebody thought of."""
    yield from _broken((*breaks_of_runs.BREAKS, *breaks_of_slots.BREAKS))
    yield from _broken(breaks_of_time.BREAKS, left_to_tests=True)


def _broken(breaks: Iterable[tuple[str, str, str, str]], *, left_to_tests: bool = False) -> Iterator[Mutant]:
    for name, module, old, new in breaks:
        text = source(module)
        found = next((it for it in (old, old.replace("'", '"')) if it in text), None)
        if found is None or text.count(found) != 1:
            raise LookupError(f'{name}: {module}.py has no such text, or has it twice: {old!r}')
        yield Mutant(name, module, *changed(module, text.replace(found, new)), left_to_tests)
