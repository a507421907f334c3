"""Records with something else in them: a third of the time that ``dataclasses.replace`` takes."""

from __future__ import annotations

import dataclasses
from functools import cache
from operator import attrgetter
from typing import Any

from anarchon_celery import floors, holding, lease, presence, transitions, turns
from anarchon_celery.stores import memory

#: Where most records are made of others.
MODULES = (floors, holding, lease, memory, presence, transitions, turns)


def replace(record: Any, /, **changes: Any) -> Any:
    """As ``dataclasses.replace``, of a record that checks nothing when it is made."""
    kind = record.__class__
    names, values = _fields(kind)
    made, put = object.__new__(kind), object.__setattr__
    for name, value in zip(names, values(record), strict=True):
        put(made, name, changes.pop(name) if name in changes else value)
    if changes:
        raise TypeError(f'{kind.__name__} has no {", ".join(changes)}')
    return made


@cache
def _fields(kind: type[Any]) -> tuple[list[str], attrgetter[tuple[Any, ...]]]:
    names = [field.name for field in dataclasses.fields(kind)]
    assert len(names) > 1 and not hasattr(kind, '__post_init__'), kind
    return names, attrgetter(*names)
