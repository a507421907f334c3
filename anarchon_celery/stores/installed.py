"""Stores of other distributions, found by the scheme of their URL.

Such a distribution names a function under the entry points ``anarchon_celery.stores``, by scheme::

    [project.entry-points."anarchon_celery.stores"]
    shelf = "anarchon_shelf:open_store"     # anarchon_store = "shelf:///var/lib/jobs"

It is called as the ones here are: ``open_store(url, *, prefix, options, within)`` returns a
:class:`~anarchon_celery.stores.Store`, without connecting, or raises ``StoreUnusable``. The schemes built in
are not replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ..errors import StoreError, StoreUnusable, in_one_line
from . import SCHEMES, Store

#: The entry points' group.
GROUP = "anarchon_celery.stores"


def schemes() -> tuple[str, ...]:
    """Return what a store's URL may begin with: what is built in, then what is installed beside it."""
    return (*SCHEMES, *sorted({one.name for one in entry_points(group=GROUP)} - {*SCHEMES}))


def open_store(url: str, *, prefix: str, options: Mapping[str, Any], within: float = float("inf")) -> Store:
    """Return the store of whoever has this scheme.

    Raises:
        StoreUnusable: nobody has it, or two have; or what they have does not load, or opens no store.
    """
    scheme = url.partition(":")[0].lower()
    found = _named(scheme) or _named(scheme.partition("+")[0])
    if found is None:
        raise StoreUnusable(f"no store for {scheme!r}: known are {', '.join(schemes())}")
    try:
        store = found.load()(url, prefix=prefix, options=options, within=within)
    except StoreError:
        raise
    except Exception as reason:
        raise StoreUnusable(f"the store for {scheme!r}, {found.value}: {in_one_line(reason)}") from reason
    if not isinstance(store, Store):
        got = type(store).__name__
        raise StoreUnusable(f"the store for {scheme!r}, {found.value}: it returned {got}, a Store is right")
    return store


def _named(scheme: str) -> EntryPoint | None:
    found = {one.value: one for one in entry_points(group=GROUP, name=scheme)}
    if len(found) > 1:
        raise StoreUnusable(f"two stores for {scheme!r}, {' and '.join(sorted(found))}: uninstall one")
    return next(iter(found.values()), None)
