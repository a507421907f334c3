"""A value of the protocol as a row of a table, and back.

A row has a column for each field, under its name: texts, integers, and JSON where a field is a
tuple. Reading trusts nothing, since somebody may have edited the row by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sqlalchemy import BigInteger, Column, ColumnElement, SmallInteger, String, Table, Text, bindparam

from ..protocol import ACTIVE, ENDED, Job, Node, Run

Value = TypeVar("Value")

#: By the annotation's first word: the column's type, and the type of what stands in it.
_TYPES: dict[str, tuple[type[BigInteger | SmallInteger | Text], type]] = {
    "int": (BigInteger, int), "bool": (SmallInteger, int), "str": (Text, str), "tuple": (Text, str),
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
        self._kinds = {name: text.partition(" ")[0].partition("[")[0] for name, text in annotated.items()}
        self._optional = {name for name, text in annotated.items() if text.endswith("None")}
        self._allowed = [
            {_TYPES[kind][1], *([type(None)] if name in self._optional else [])}
            for name, kind in self._kinds.items()
        ]
        self._sound: set[tuple[type, ...]] = set()  # rows of a kind that was looked at already: they are many
        self._counts = _COUNTS & annotated.keys()
        self._coded = [name for name, kind in self._kinds.items() if kind in _READ]
        self._cells = attrgetter(*self.names)

    def columns(self, collation: str | None) -> Iterable[Column[Any]]:
        """Return the columns; what is looked up is of a length that every database can index."""
        for name, kind in self._kinds.items():
            looked_up = name in self.key or name == "state"
            sort = String(255, collation=collation) if looked_up and kind == "str" else _TYPES[kind][0]()
            yield Column(
                name, sort, primary_key=name in self.key, autoincrement=False, nullable=name in self._optional
            )

    def read(self, row: Iterable[Any]) -> Value:
        """Return the value of a row.

        Raises:
            ValueError: it cannot be one; the message says why.
        """
        cells = dict(zip(self.names, row, strict=True))
        if (types := tuple(map(type, cells.values()))) not in self._sound:
            for (name, cell), allowed in zip(cells.items(), self._allowed, strict=True):
                if type(cell) not in allowed:
                    raise unreadable(name, cell)
            self._sound.add(types)
        for name in self._counts:
            if cells[name] < 0:
                raise unreadable(name, cells[name])
        for name in self._coded:
            cells[name] = _READ[self._kinds[name]](name, cells[name])
        return self.values(**cells)

    def written(self, value: Value) -> dict[str, Any]:
        """Return the row of a value."""
        row = dict(zip(self.names, self._cells(value), strict=True))
        for name in self._coded:
            row[name] = _written(row[name])
        return row

    def differing(self, stored: Value | None, value: Value) -> dict[str, Any]:
        """Return the columns that have to be written; all of a row that could not be read."""
        if stored is None:
            return self.written(value)
        cells = zip(self.names, self._cells(stored), self._cells(value), strict=True)
        return {name: _written(new) for name, old, new in cells if new != old}

    def key_of(self, value: Value) -> dict[str, Any]:
        """Return what ``is_key`` asks for."""
        return {f"key_{name}": getattr(value, name) for name in self.key}

    def is_key(self, table: Table) -> list[ColumnElement[bool]]:
        """Return the condition that a row is the one of ``key_of``."""
        return [table.c[name] == bindparam(f"key_{name}") for name in self.key]


def _bool(name: str, cell: int) -> bool:
    if cell not in (0, 1):
        raise unreadable(name, cell)
    return bool(cell)


def _pairs(name: str, cell: str) -> tuple[tuple[str, int], ...]:
    try:
        pairs = tuple((text, number) for text, number in json.loads(cell))
    except (TypeError, ValueError):
        raise unreadable(name, cell) from None
    if not all(type(text) is str and type(number) is int for text, number in pairs):
        raise unreadable(name, cell)
    return pairs


_READ: dict[str, Callable[[str, Any], Any]] = {"bool": _bool, "tuple": _pairs}


def _written(cell: Any) -> Any:
    if type(cell) is tuple:
        return json.dumps(cell, separators=(",", ":"))
    return int(cell) if type(cell) is bool else cell


def unreadable(name: str, cell: Any) -> ValueError:
    """Return the error that a field holds what it cannot."""
    text = repr(cell)
    return ValueError(f"{name} is {text if len(text) <= 60 else f'{text[:57]}...'}")


JOB: Shape[Job] = Shape(Job, "name")
NODE: Shape[Node] = Shape(Node, "id")


class _RunShape(Shape[Run]):
    """A run's state has to be one there is, and its deadline to fit it."""

    def read(self, row: Iterable[Any]) -> Run:
        run = super().read(row)
        if run.state not in ACTIVE | ENDED:
            raise unreadable("state", run.state)
        if run.active and run.deadline is None:
            raise ValueError(f"it is {run.state} and has no deadline")
        return run


RUN = _RunShape(Run, "job", "slot", "kind")
