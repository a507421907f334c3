"""Nodes in the admin, as the command `status` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin

from ..show import node_cells
from ..status import GONE_FOR, odd_schedules
from .models import Node
from .rows import RowAdmin, Rows, desk_of
from .texts import NOTHING, badge, when

HEADS = ("node", "kind", "", "last seen", "clock", "versions", "schedule")


def _of_table(place: int) -> Any:
    """Return what shows one column of the commands' table."""

    @admin.display(description=HEADS[place])
    def cell(row: Node) -> str:
        return node_cells(row.record, row.alive, row.odd)[place] or NOTHING

    return cell


@admin.display(description="")
def _alive(row: Node) -> Any:
    return badge("alive" if row.alive else "gone")


@admin.display(description="last seen")
def _seen(row: Node) -> Any:
    return when(row.record.seen)


class NodeAdmin(RowAdmin):
    """Beats and workers; who is gone is shown for an hour."""

    list_display = (_of_table(0), _of_table(1), _alive, _seen, _of_table(4), _of_table(5), _of_table(6))
    list_display_links = None
    search_fields = ()
    actions = None

    def rows(self, request: Any, wanted: Mapping[str, str], query: str) -> Rows:
        """Return all nodes, but those that are gone for long."""
        desk = desk_of(request)
        nodes = [(node, desk.is_alive(node)) for node in desk.store.nodes()]
        odd = odd_schedules([node for node, alive in nodes if alive])
        since = desk.store.clock.now() - GONE_FOR
        shown = ((node, alive) for node, alive in nodes if alive or node.seen >= since)
        return Rows([Node.of(node, alive=alive, odd=node.id in odd) for node, alive in shown])
