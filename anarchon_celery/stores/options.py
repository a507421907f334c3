"""``anarchon_store_options`` whose clients would say late, or not at all, that a value cannot be meant.

Only what is known to be so is looked at; all else is the client's to judge. None is always "not given".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..errors import StoreUnusable

#: What begins a line about one of them; and about what their client does not take.
OPTIONS = "anarchon_store_options: "
TAKEN = "the query of its URL, or anarchon_store_options, cannot be meant:"

#: What is said of any URL whose port is none, and where an unescaped password may be what is wrong.
NO_PORT = "the port is no number up to 65535"
ESCAPED = "with %40, %2F, … for what is special in the password"


class Right(NamedTuple):
    """Whether a value can be meant, and what can."""

    is_right: Callable[[Any], bool]
    words: str


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


SECONDS = Right(lambda it: _is_number(it) and 0 <= it <= 1e9, "seconds are right, such as 1.5")
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
            raise StoreUnusable(f"{OPTIONS}{within}{name!r} is no name: a text is right")
        right = rights.get(name)
        if right is not None and value is not None and not right.is_right(value):
            shown = repr(value) if isinstance(value, (str, int, float)) else f"<{type(value).__name__}>"
            raise StoreUnusable(f"{OPTIONS}{within}{name}={shown[:100]}: {right.words}")


def wrong_in_query(
    given: Mapping[str, Any], read: Mapping[str, Any], rights: Mapping[str, Right]
) -> str | None:
    """Return the first option of a URL that cannot be meant, as it was given, and what is right."""
    for name, value in read.items():
        right = rights.get(name)
        if right is not None and not right.is_right(value):
            return f"{name}={str(given[name])[:100]!r}: {right.words}"
    return None
