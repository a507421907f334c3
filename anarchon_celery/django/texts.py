"""What cells of the admin say: instants in the project's zone and in UTC, states in their colours."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from django.utils.html import format_html

from ..forecast import local_text
from ..slots import iso
from ..wallclock import Zone
from ..zones import zone_of

#: What a cell says that has nothing to say.
NOTHING = "-"


def zone() -> Zone:
    """Return the zone of the project, or the one that somebody activated for the request."""
    return zone_of(timezone.get_current_timezone())


def when(at: int | None) -> Any:
    """Return an instant in that zone, and below it in UTC, as the commands write and read it."""
    if at is None:
        return NOTHING
    shown = '<time datetime="{0}">{1}</time> <small class="anarchon-below">{0}</small>'
    return format_html(shown, iso(at), local(at))


def local(at: int) -> str:
    """Return an instant in that zone, without its offset: UTC is near."""
    return local_text(at, zone()).rpartition(" ")[0]


def badge(state: str, text: str = "") -> Any:
    """Return a state in its colour."""
    return format_html('<span class="anarchon-state anarchon-{}">{}</span>', state, text or state)


def with_below(first: Any, below: Any) -> Any:
    """Return something, and below it, small, something else, if there is."""
    if not below:
        return first
    return format_html('{} <small class="anarchon-below">{}</small>', first or NOTHING, below)
