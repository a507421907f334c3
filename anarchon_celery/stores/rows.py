"""A value of the protocol as a row of a table, and back.

A row has a column for each field, under its name: texts, integers, and JSON where a field is a
tuple. Reading trusts nothing, since somebody may have edited the row by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import BigInteger, Column, ColumnElement, SmallInteger, String, Table, Text, bindparam

from ..protocol import ACTIVE, ENDED, Job, Node, Run

Value = TypeVar("Value")

_TYPES: dict[str, type[BigInteger | SmallInteger | Text]] = {
    "int": BigInteger, "bool": SmallInteger, "str": Text, "tuple": Text,
}  # fmt: skip

#: What is counted, and cannot be below zero.
_COUNTS = {"dispatch", "unstarted", "attempt", "crashes", "fence", "count"}


class Shape(Generic[Value]):
    """What the rows of one kind of value look like."""

    def __init__(self, values: type[Value], *key: str) -> None:
        """Take the fields from the dataclass; those of ``key`` name a row."""
        self.values, self.key = values, key
        annotated = {one.name: str(one.type) for one in fields(values)}  # type: ignore[arg-type]
        self.names = tuple(annotated)
        self._kinds = [text.partition(" ")[0].partition("[")[0] for text in annotated.values()]
        self._optional = [text.endswith("None") for text in annotated.values()]
        self._get = attrgetter(*self.names)
        self._plain = not {"bool", "tuple"} & set(self._kinds)

    def columns(self, collation: str | None) -> Iterable[Column[Any]]:
        """Return the columns; what is looked up is of a length that every database can index."""
        for name, kind, optional in zip(self.names, self._kinds, self._optional, strict=True):
            looked_up = name in self.key or name == "state"
            sort = String(255, collation=collation) if looked_up and kind == "str" else _TYPES[kind]()
            is_key = name in self.key
            yield Column(name, sort, primary_key=is_key, autoincrement=False, nullable=optional)

    def read(self, row: Iterable[Any]) -> Value:
        """Return the value of a row.

        Raises:
            ValueError: it cannot be one; the message says why.
        """
        cells = zip(self.names, row, self._kinds, self._optional, strict=True)
        return self.values(
            **{
                name: None if cell is None and optional else _read(name, cell, kind)
                for name, cell, kind, optional in cells
            }
        )

    def written(self, value: Value) -> dict[str, Any]:
        """Return the row of a value."""
        cells = self._get(value)
        if not self._plain:
            cells = map(_written, cells)
        return dict(zip(self.names, cells, strict=True))

    def differing(self, stored: Value | None, value: Value) -> dict[str, Any]:
        """Return the columns that have to be written; all of a row that could not be read."""
        new = self.written(value)
        if stored is None:
            return new
        old = self.written(stored)
        return {name: cell for name, cell in new.items() if cell != old[name]}

    def key_of(self, value: Value) -> dict[str, Any]:
        """Return what ``is_key`` asks for."""
        return {f"key_{name}": getattr(value, name) for name in self.key}

    def is_key(self, table: Table) -> list[ColumnElement[bool]]:
        """Return the condition that a row is the one of ``key_of``."""
        return [table.c[name] == bindparam(f"key_{name}") for name in self.key]


def _read(name: str, cell: Any, kind: str) -> Any:
    if kind == "tuple":
        return _pairs(name, cell)
    if kind == "bool" and cell in (0, 1):
        return bool(cell)
    sound = isinstance(cell, str if kind == "str" else int)
    if not sound or (name in _COUNTS and cell < 0):
        raise ValueError(f"{name} is {_shortened(cell)}")
    return cell


def _pairs(name: str, cell: Any) -> tuple[tuple[str, int], ...]:
    try:
        pairs = tuple((text, number) for text, number in json.loads(cell))
    except (TypeError, ValueError):
        pairs = (("", None),)
    if not all(isinstance(text, str) and isinstance(number, int) for text, number in pairs):
        raise ValueError(f"{name} is {_shortened(cell)}")
    return pairs


def _written(cell: Any) -> Any:
    if isinstance(cell, tuple):
        return json.dumps(cell, separators=(",", ":"))
    return int(cell) if isinstance(cell, bool) else cell


def _shortened(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) <= 60 else f"{text[:57]}..."


JOB: Shape[Job] = Shape(Job, "name")
NODE: Shape[Node] = Shape(Node, "id")


class _RunShape(Shape[Run]):
    """A run's state has to be one there is, and its deadline to fit it."""

    def read(self, row: Iterable[Any]) -> Run:
        run = super().read(row)
        if run.state not in ACTIVE | ENDED:
            raise ValueError(f"state is {_shortened(run.state)}")
        if run.active and run.deadline is None:
            raise ValueError(f"it is {run.state} and has no deadline")
        return run


RUN = _RunShape(Run, "job", "slot", "kind")
