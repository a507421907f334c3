"""Rows of the admin that come from the store: the list of them, its filters, its pages, its one line if not.

The admin's lists are made for querysets. What they ask of one for rows that are there already is little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import click
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html

from ..desk import Desk
from ..errors import StoreError
from .project import opened

#: How many runs are looked at for a list: the newest ones.
MOST = 1000


class Rows(Sequence[Any]):
    """Rows, as the admin takes them for a queryset.

    ``find`` looks for one that is chosen by its key and is not among them; ``show`` is told of those that
    are shown, which may be few of them, before they are.
    """

    ordered = True  # as the paginator asks

    def __init__(
        self, rows: Sequence[Any] = (), find: Callable[[str], Any] | None = None, *,
        show: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:  # fmt: skip
        self._rows, self._find, self._show = rows, find, show

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        found = self._rows[place]
        if self._show and isinstance(place, slice):  # a page
            self._show(found)
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def count(self) -> int:  # type: ignore[override]
        """Return how many there are."""
        return len(self._rows)

    def filter(self, *, pk__in: Collection[str]) -> Rows:
        """Return those that somebody chose."""
        there = {row.pk: row for row in self._rows}
        chosen = (there.get(pk) or (self._find and self._find(pk)) for pk in dict.fromkeys(pk__in))
        return Rows([row for row in chosen if row is not None], self._find)

    def _clone(self) -> Sequence[Any]:
        return self[:]  # all are shown


class RowList(ChangeList):  # type: ignore[misc]
    """A list whose rows its admin finds, by the values of the filters and what is searched for."""

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Rows:
        """Return the rows that the filters let through."""
        self.filter_specs, self.has_filters, others, _, self.has_active_filters = self.get_filters(request)
        if others:
            raise IncorrectLookupParameters
        self.clear_all_filters_qs = self.get_query_string(remove=self.get_filters_params())
        values = {one.parameter_name: one.value() for one in self.filter_specs}
        wanted = {name: value for name, value in values.items() if value is not None}
        found: Rows = self.model_admin.rows(request, wanted, self.query.strip())
        return found

    def get_results(self, request: Any) -> None:
        """Count them; where nothing is filtered out these are all."""
        super().get_results(request)
        if not (self.query or self.has_active_filters):
            self.full_result_count = self.result_count


class Choice(admin.SimpleListFilter):  # type: ignore[misc]
    """A filter by one of some values; what it lets through its admin says."""

    values: Sequence[str] = ()

    def lookups(self, request: Any, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return what may be chosen."""
        return [(value, value) for value in self.values]

    def queryset(self, request: Any, queryset: Any) -> None:
        """Leave it to the admin."""


class RowAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """Shows rows that come from the store; nobody adds, edits or deletes one."""

    actions_on_bottom = False
    list_per_page = 100
    list_max_show_all = 1000
    search_fields: Sequence[str] = ("name",)  # that there is a field to search with
    show_facets = getattr(getattr(admin, "ShowFacets", None), "NEVER", None)  # counts would need a database
    show_full_result_count = False
    sortable_by = ()
    change_list_template = "anarchon/list.html"
    change_form_template = "anarchon/detail.html"

    class Media:
        """The look of states and times, in the colours of the admin."""

        css: Mapping[str, Sequence[str]] = {"all": ("anarchon/admin.css",)}

    # what there is ------------------------------------------------------------------------------

    def rows(self, request: Any, wanted: Mapping[str, str], query: str) -> Rows:
        """Return the rows that have the values of these filters, and that are searched for."""
        raise NotImplementedError

    def row(self, request: Any, pk: str) -> Any:
        """Return one row, or None."""
        return None

    def note(self, request: Any) -> str:
        """Return a line that stands above the list."""
        return desk_of(request).store.shown

    def get_queryset(self, request: Any) -> Rows:
        """Return nothing: what there is depends on the filters."""
        return Rows()

    def get_changelist(self, request: Any, **_: Any) -> type[RowList]:
        """Return the kind of list."""
        return RowList

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """Return the row of a page."""
        return self.row(request, object_id)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Sequence[str]:
        """All that is shown, so that no field has a column of a table."""
        return tuple(field for _, part in self.fieldsets or () for field in part["fields"])

    def say(self, request: Any, line: str, level: int) -> None:
        """Say a line above the page, as it is: the admin writes the first letter of a text large."""
        self.message_user(request, format_html("<span>{}</span>", line), level)

    # who may do what ----------------------------------------------------------------------------

    def has_add_permission(self, request: Any) -> bool:
        """Nobody: jobs are in the code."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Nobody: there is no form. Who may steer is asked by :meth:`has_steer_permission`."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Nobody: what is over goes with old history."""
        return False

    def has_steer_permission(self, request: Any) -> bool:
        """Whoever has the permission to change such rows."""
        return bool(request.user.has_perm(f"anarchon.change_{self.opts.model_name}"))

    # the pages ----------------------------------------------------------------------------------

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show the list, or do what somebody asks for."""
        if request.method == "POST" and not self.has_steer_permission(request):
            raise PermissionDenied

        def view() -> Any:
            more = {"store_note": self.note(request), **(extra_context or {})}
            return super(RowAdmin, self).changelist_view(request, more)

        return self._at_a_desk(request, view)

    def change_view(
        self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Show one row."""

        def view() -> Any:
            return super(RowAdmin, self).change_view(request, object_id, form_url, extra_context)

        return self._at_a_desk(request, view)

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Show nobody a question whether to delete it."""
        raise PermissionDenied

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Show what was asked for in the admin."""

        def view() -> Any:
            return super(RowAdmin, self).history_view(request, object_id, extra_context)

        return self._at_a_desk(request, view)

    def _at_a_desk(self, request: Any, view: Callable[[], Any]) -> Any:
        """Show a page with the store at hand; where that does not answer, the line that says so."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name  # of several sites this one is linked to
        try:
            with opened() as request.anarchon:
                return view()
        except (StoreError, click.ClickException) as reason:
            line = getattr(reason, "message", str(reason))
            heads = {"title": self.opts.verbose_name_plural.capitalize(), "opts": self.opts, "line": line}
            context = {**self.admin_site.each_context(request), **heads}
            return TemplateResponse(request, "anarchon/unreachable.html", context, status=503)


def desk_of(request: Any) -> Desk:
    """Return the desk of a request."""
    desk: Desk = request.anarchon
    return desk


def page_of(model_admin: RowAdmin, row: Any) -> str:
    """Return the address of the page of a row."""
    name = f"{model_admin.admin_site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
    return str(reverse(name, args=[quote(row.pk)]))
