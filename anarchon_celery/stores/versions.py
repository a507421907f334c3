"""The versions of the store's layout: which there is a way from, and what is said of the others.

A store says of which version its layout is. Nodes work with one version and refuse all others:
``celery -A proj anarchon upgrade`` brings an older one to it. Who raises ``VERSION``, in :mod:`.tables`
and :mod:`.redis`, says here what is new, and adds the way there: a function in :mod:`.upgrades` for
databases, and for Redis a script ``lua/to_<version>.lua``, which does all of it or nothing.

A way only adds, so that nodes of the older release may be in the midst of their own steps meanwhile;
one that cannot do so has to keep them out first.
"""

from __future__ import annotations

import re

from ..errors import StoreUnusable

#: What each version has that the one before had not.
NEW = {
    3: "the app of each node; since when the store is the one it is",
    4: "runs that somebody asks for, with arguments of their own; versions, clock and schedule of each node",
}

#: The oldest version there is a way from.
OLDEST = min(NEW) - 1

#: What somebody has to do once.
COMMAND = "celery -A proj anarchon upgrade"


def ways_from(found: int | None) -> dict[int, str]:
    """Return the versions to go through from the one that was found, and what is new in each."""
    return {version: new for version, new in NEW.items() if found is not None and version > found}


def read_version(found: str | None, version: int, what: str) -> int | None:
    """Return a version that there is a way from; None where there is none yet.

    Raises:
        StoreUnusable: It is a newer one than ``version``, one that is too old, or no number.
    """
    if found is None:
        return None
    if not (_is_number(found) and OLDEST <= int(found) <= version):
        raise of_another_version(found, version, what)
    return int(found)


def of_another_version(found: str, version: int, what: str) -> StoreUnusable:
    """Return what is said of a layout of another version; ``what`` are its keys or tables."""
    if not _is_number(found):
        return StoreUnusable(
            f"{what} have the version {found!r}, which is none: somebody edited it. The number that it was "
            f"is right; {version} is the one of this anarchon_celery"
        )
    told = f"{what} are of version {found}, this anarchon_celery works with version {version}"
    if int(found) > version:
        return StoreUnusable(f"{told}: install the release that made them, or use another anarchon_prefix")
    if int(found) < OLDEST:
        return StoreUnusable(f"{told} and cannot upgrade them: use another anarchon_prefix, or a fresh store")
    return StoreUnusable(f"{told}: run `{COMMAND}` once, and all nodes go on")


def _is_number(found: str) -> bool:
    return re.fullmatch("[1-9][0-9]{0,8}", found) is not None
