"""Runs in the admin, newest first, as the command `runs` shows them; and cancel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.utils.html import format_html

from ..protocol import ACTIVE, BUFFERED, ENDED
from ..show import RUN_HEADS, run_cells
from .models import Job, Run, key_of, may_be_a_name
from .rows import MOST, Choice, RowAdmin, Rows, desk_of, page_of
from .steer import cancel
from .texts import NOTHING, badge, when, with_below

#: How many jobs a filter offers, and of how many that are searched for the runs are looked at one by one.
MOST_JOBS = 30


class StateFilter(Choice):
    """The runs in one state."""

    title = parameter_name = "state"
    values = (*sorted(ACTIVE), BUFFERED, *sorted(ENDED))


class TriggerFilter(Choice):
    """The runs that were begun for one cause."""

    title = parameter_name = "trigger"
    values = ("scheduled", "catch-up", "takeover", "manual", "backfill")


class JobFilter(Choice):
    """The runs of one job; of many jobs only the one that is chosen is offered."""

    title = parameter_name = "job"

    def lookups(self, request: Any, model_admin: Any) -> Sequence[tuple[str, str]]:
        """Return what may be chosen."""
        names = [job.name for job in desk_of(request).store.jobs()]
        if len(names) > MOST_JOBS:
            names = request.GET.getlist("job")[-1:]  # or, of one that is not there, all runs would be shown
        return [(name, name) for name in names]


def _of_table(head: str) -> Any:
    """Return what shows one column of the commands' table."""
    place = RUN_HEADS.index(head)

    @admin.display(description=head)
    def cell(row: Run) -> str:
        return run_cells(row.record)[place] or NOTHING

    return cell


def _of_record(name: str, show: Callable[[Any], Any] = str) -> Any:
    """Return what shows one field of a run, where it has one."""

    @admin.display(description=name.replace("_", " "))
    def cell(row: Run) -> Any:
        value = getattr(row.record, name)
        return NOTHING if value is None else show(value)

    return cell


def _records(*names: str, show: Callable[[Any], Any] = str) -> tuple[Any, ...]:
    return tuple(_of_record(name, show) for name in names)


SLOT, STATE = _of_record("slot", when), _of_record("state", badge)
ATTEMPT, ON, LATE, WAITED, TOOK, WHY = map(_of_table, RUN_HEADS[3:])
INSTANTS = ("claimed_at", "queued_at", "started_at", "finished_at", "deadline")
DETAILS = ("trigger", "kind", "node", "task_id", "dispatch", "crashes", "fence", "retries", "stop")


class RunAdmin(RowAdmin):
    """What ran when, newest first."""

    list_display = (SLOT, "job", "state", "attempt", LATE, WAITED, TOOK)
    list_filter = (StateFilter, TriggerFilter, JobFilter)
    search_help_text = "Part of a job's name"
    actions = (cancel,)
    fieldsets = (
        (None, {"fields": ("job", SLOT, STATE, WHY, ATTEMPT, ON, *_records("asked_by", "arguments"))}),
        ("Times", {"fields": (*_records(*INSTANTS, show=when), LATE, WAITED, TOOK)}),
        ("Details", {"fields": _records(*DETAILS)}),
    )

    def rows(self, request: Any, wanted: Mapping[str, str], query: str) -> Rows:
        """Return the newest runs that the filters let through."""
        store, state = desk_of(request).store, wanted.get("state")
        jobs = [wanted["job"]] if "job" in wanted else [None]
        if not all(may_be_a_name(job) for job in jobs if job):
            return Rows()
        if query and "job" not in wanted:
            named = [job.name for job in store.jobs() if query.lower() in job.name.lower()]
            jobs = named if len(named) <= MOST_JOBS else [None]
        found = [run for job in jobs for run in store.runs(job=job, state=state, limit=MOST)]
        if len(jobs) > 1:
            found = sorted(found, key=lambda run: run.slot, reverse=True)[:MOST]
        shown = (
            run for run in found
            if query.lower() in run.job.lower() and wanted.get("trigger", run.trigger) == run.trigger
        )  # fmt: skip
        return Rows([Run.of(run) for run in shown], lambda pk: self.row(request, pk))

    def row(self, request: Any, pk: str) -> Any:
        """Return the run of that name."""
        key = key_of(pk)
        run = None if key is None else desk_of(request).store.run(key)
        return None if run is None else Run.of(run)

    def note(self, request: Any) -> str:
        """Return where the store is, and what is looked at."""
        return f"{super().note(request)} · of the newest {MOST} runs"

    def render_change_form(self, request: Any, context: Any, *args: Any, **how: Any) -> Any:
        """Add the button."""
        row = how.get("obj")
        if row is not None and not row.record.ended and self.has_steer_permission(request):
            context |= {"buttons": [("cancel", "Cancel …")]}
        return super().render_change_form(request, context, *args, **how)

    @admin.display
    def job(self, row: Run) -> Any:
        """Return its job, whose page is near."""
        return format_html('<a href="{}">{}</a>', page_of(self, Job(name=row.record.job)), row.record.job)

    @admin.display
    def state(self, row: Run) -> Any:
        """Return its state, and why it is so."""
        return with_below(badge(row.record.state), run_cells(row.record)[-1])

    @admin.display
    def attempt(self, row: Run) -> Any:
        """Return which attempt it is, and where."""
        return with_below(ATTEMPT(row), row.record.owner)
