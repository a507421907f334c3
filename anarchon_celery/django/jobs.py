"""Jobs in the admin: when each fires next, its newest run, why it is paused; and trigger, pause, resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from django.contrib import admin, messages
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode

from ..desk import AppJob, begun
from ..errors import in_one_line
from ..forecast import change_text, end_of, forecast
from ..protocol import ACTIVE, BUFFERED
from ..show import RUN_HEADS, job_note, run_cells
from ..stores import Store
from . import models
from .models import Job
from .rows import MOST, Choice, RowAdmin, Rows, desk_of, page_of
from .steer import pause, resume, trigger
from .texts import NOTHING, badge, local, when, with_below

#: How many coming fire times and runs the page of a job shows.
NEXT, LAST = 10, 10

GOES_ON = (*sorted(ACTIVE), BUFFERED)


class PausedFilter(Choice):
    """Jobs that are paused, and that are not."""

    title = parameter_name = "paused"
    values = ("yes", "no")


class ActiveFilter(PausedFilter):
    """Jobs with a run that goes on or waits, and without."""

    title = parameter_name = "active"


class JobAdmin(RowAdmin):
    """Jobs of the app and of the store."""

    list_display = ("name", "schedule", "next_fire", "last_run", "goes_on")
    list_filter = (PausedFilter, ActiveFilter)
    search_help_text = "Part of a job's name"
    actions = (trigger, pause, resume)
    fieldsets = (
        (None, {"fields": ("name", "schedule", "next_fire", "last_run", "goes_on")}),
        ("Details", {"fields": ("task", "policy", "supervised", "decided", "first_seen")}),
    )

    def rows(self, request: Any, wanted: Mapping[str, str], query: str) -> Rows:
        """Return all jobs, but those that are filtered out."""
        rows = self._all(request)
        if request.method == "GET":
            for line in (*desk_of(request).refusal_lines(), *desk_of(request).notes()):
                self.say(request, line, messages.WARNING)
        if query:
            rows = [row for row in rows if query.lower() in row.name.lower()]
        if "paused" in wanted:
            rows = [row for row in rows if _is_paused(row) == (wanted["paused"] == "yes")]
        if "active" in wanted:
            rows = [row for row in rows if bool(row.active) == (wanted["active"] == "yes")]
        store = desk_of(request).store
        return Rows(rows, lambda pk: self.row(request, pk), show=lambda shown: _find_newest(store, shown))

    def row(self, request: Any, pk: str) -> Any:
        """Return the job of that name."""
        found = [row for row in self._all(request) if row.pk == pk]
        _find_newest(desk_of(request).store, found)
        return found[0] if found else None

    def _all(self, request: Any) -> list[Job]:
        desk = desk_of(request)
        active: dict[str, Counter[str]] = {}
        for run in chain.from_iterable(desk.store.runs(state=state, limit=MOST) for state in GOES_ON):
            active.setdefault(run.job, Counter())[run.state] += 1
        views = desk.views(last_slots=False)
        return [Job.of(view, dict(active.get(view.name, {}))) for view in views]

    def note(self, request: Any) -> str:
        """Return where the store is, and who is there."""
        desk = desk_of(request)
        alive = Counter(node.kind for node in desk.store.nodes() if desk.is_alive(node))
        there = (f"{alive[kind]} {kind}{'s' * (alive[kind] != 1)}" for kind in ("beat", "worker"))
        return f"{desk.store.shown} · {' and '.join(there)} alive"

    def render_change_form(self, request: Any, context: Any, *args: Any, **how: Any) -> Any:
        """Add what comes, what was, and the buttons."""
        row = how.get("obj")
        if row is not None:
            context |= {
                "tables": [_coming(request, row), _last_runs(self, request, row)],
                "buttons": self._buttons(request, row),
            }
        return super().render_change_form(request, context, *args, **how)

    def _buttons(self, request: Any, row: Job) -> list[tuple[str, str]]:
        if not self.has_steer_permission(request):
            return []
        pause_or_resume = ("resume", "Resume") if _is_paused(row) else ("pause", "Pause …")
        return [("trigger", "Trigger"), pause_or_resume]

    # cells --------------------------------------------------------------------------------------

    @admin.display
    def schedule(self, row: Job) -> Any:
        """Return when it fires, with its zone."""
        return with_below(row.view.schedule, row.view.zone)

    @admin.display(description="next")
    def next_fire(self, row: Job) -> Any:
        """Return when it fires next, of one that this app has."""
        view = row.view
        if view.mine is None or view.fails or view.next_at is not None:
            return when(view.next_at)
        return "never" if view.not_before is None else format_html("not before {}", when(view.not_before))

    @admin.display(description="last run")
    def last_run(self, row: Job) -> Any:
        """Return the newest run."""
        run = row.newest
        if run is None:
            return NOTHING
        runs = f"{reverse(f'{self.admin_site.name}:anarchon_run_changelist')}?{urlencode({'job': row.name})}"
        return with_below(format_html('<a href="{}">{}</a>', runs, badge(run.state)), local(run.slot))

    @admin.display(description="now")
    def goes_on(self, row: Job) -> Any:
        """Return how many runs of it go on or wait, why it is paused, and who does not know it."""
        badges = [badge(state, f"{count} {state}") for state, count in sorted(row.active.items())]
        badges += [badge("paused")] if _is_paused(row) else []
        shown = format_html_join(" ", "{}", ((one,) for one in badges)) if badges else NOTHING
        who, _, why = job_note(row.view).partition("paused: ")  # the badge says that it is
        return with_below(shown, who + why)

    @admin.display
    def task(self, row: Job) -> str:
        """Return the name of its task."""
        return NOTHING if row.view.mine is None else str(row.view.mine.entry.task)

    @admin.display
    def policy(self, row: Job) -> str:
        """Return how its runs are treated, as far as people ask first."""
        mine = row.view.mine
        return NOTHING if mine is None else f"overlap {mine.policy.overlap}, catch-up {mine.policy.catch_up}"

    @admin.display
    def supervised(self, row: Job) -> str:
        """Return whether its runs are followed to their end."""
        return "yes" if row.view.supervised else "no"

    @admin.display(description="decided up to")
    def decided(self, row: Job) -> Any:
        """Return up to where its slots are decided."""
        return when(row.view.stored.floor if row.view.stored else None)

    @admin.display(description="first seen")
    def first_seen(self, row: Job) -> Any:
        """Return since when the store knows it."""
        return when(row.view.stored.first_seen if row.view.stored else None)


def _find_newest(store: Store, rows: Sequence[Job]) -> None:
    """Find the newest run of each job that has one; one call tells of all jobs that fire often."""
    newest = {run.job: run for run in reversed(store.runs(limit=MOST))}
    for row in rows:
        found = [newest[row.name]] if row.name in newest else store.runs(job=row.name, limit=1)
        row.newest = found[0] if found else None


def _is_paused(row: Job) -> bool:
    return row.view.stored is not None and row.view.stored.paused is not None


def _coming(request: Any, row: Job) -> dict[str, Any]:
    """Return a table of coming fire times, as `next` prints it."""
    mine, note = row.view.mine, "not in this app"
    rows: list[Sequence[Any]] = []
    if mine is not None:
        try:
            rows, note = _times(request, row, mine)
        except Exception as reason:  # somebody's own schedule
            note = in_one_line(reason)
    heads = ("Fires", f"In the job's zone ({row.view.zone})", "")
    return {"title": "Next fire times", "heads": heads, "rows": rows, "note": note}


def _times(request: Any, row: Job, mine: AppJob) -> tuple[list[Sequence[Any]], str]:
    """Return its coming fire times, or why there are none."""
    times, begin = begun(mine.times, row.view.stored, desk_of(request).store.clock.now() + 1)
    found = forecast(times, mine.zone, begin=begin, count=NEXT)
    rows: list[Sequence[Any]] = [
        (when(one.at), one.local, "; ".join([*map(change_text, one.changes), *filter(None, [one.note])]))
        for one in found
    ]
    return rows, "" if rows else f"it {end_of(times, found, begin)}"


def _last_runs(model_admin: RowAdmin, request: Any, row: Job) -> dict[str, Any]:
    found = desk_of(request).store.runs(job=row.name, limit=LAST)
    rows = []
    for run in found:
        slot = format_html('<a href="{}">{}</a>', page_of(model_admin, models.Run.of(run)), when(run.slot))
        rows.append((slot, badge(run.state), *run_cells(run)[3:]))
    return {"title": "Last runs", "heads": RUN_HEADS[1:], "rows": rows, "note": "no runs"}
