"""``anarchon_store_options`` whose clients would say late, or not at all, that a value cannot be meant.

Only what is known to be so is looked at; all else is the client's to judge. None is always "not given".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import StoreUnusable


class Right(NamedTuple):
    """Whether a value can be meant, and what can."""

    is_right: Callable[[Any], bool]
    words: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


SECONDS = Right(lambda it: _is_number(it) and it >= 0, "seconds are right, such as 1.5")
WHOLE = Right(_is_whole, "a whole number is right, such as 5")
A_DICT = Right(lambda it: isinstance(it, Mapping), "a dict is right")
A_CLASS = Right(lambda it: isinstance(it, type), "a class is right")
A_PATH = Right(lambda it: isinstance(it, (str, os.PathLike)), "the path of a file is right")


def refuse_wrong(options: Mapping[Any, Any], rights: Mapping[str, Right], within: str = "") -> None:
    """Refuse the first option that cannot be meant.

    Raises:
        StoreUnusable: One line: its name, its value, what would be right.
    """
    for name, value in options.items():
        if not isinstance(name, str):
            raise StoreUnusable(f"anarchon_store_options: {within}{name!r} is no name: a text is right")
        right = rights.get(name)
        if right is not None and value is not None and not right.is_right(value):
            shown = repr(value) if isinstance(value, (str, int, float)) else f"<{type(value).__name__}>"
            raise StoreUnusable(f"anarchon_store_options: {within}{name}={shown[:100]}: {right.words}")
