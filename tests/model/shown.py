"""Words for what happens, and what else all happenings share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cluster import SLOTS, State
from .world import Moment

#: What somebody does: it changes the moment, or is False where it cannot be done now.
Act = Callable[[Moment], Any]


def left(state: State, fault: str) -> bool:
    """Whether that may still happen."""
    return dict(state.left).get(fault, 0) > 0


def shown(item: Any) -> str:
    """A run, or whatever names one, as a way names it: ``slot 1, dispatch 2``."""
    key = item.key
    name = key.kind if key.slot not in SLOTS else f'slot {SLOTS.index(key.slot) + 1}'
    kind = '' if key.kind in ('scheduled', name) else f' ({key.kind})'
    return f'{name}{kind}, dispatch {item.dispatch}'
