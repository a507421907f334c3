"""What the admin's actions do: the same as the commands, in their words, in the name of who is logged in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ValidationError
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse

from ..asking import request_for, trigger_line, triggered
from ..desk import Refused
from ..steering import (
    LONGEST_REASON,
    cancel_line,
    cancelled,
    one_line,
    pause_lines,
    paused,
    resume_line,
    resumed,
)
from .rows import RowAdmin, Rows, desk_of, page_of

#: What became of something, and whether that is what was asked for.
Said = tuple[str, bool]


class ReasonForm(forms.Form):  # type: ignore[misc]
    """Asks why."""

    reason = forms.CharField(
        required=False, max_length=LONGEST_REASON, help_text="For whoever wonders.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autofocus": True}),
    )  # fmt: skip

    def clean_reason(self) -> str | None:
        """Return it as one line; None if there is none."""
        text = self.cleaned_data["reason"]
        try:
            return one_line(text, "reason") if text else None
        except Refused as reason:
            raise ValidationError(reason.message) from reason


@admin.action(description="Trigger: run now", permissions=["steer"])
def trigger(model_admin: RowAdmin, request: Any, rows: Rows) -> Any:
    """Ask for a run of each job for now, with the entry's own arguments."""
    notes: dict[str, None] = {}

    def do(row: Any) -> Said:
        desk = desk_of(request)
        answer, note = triggered(desk, request_for(desk, row.name, by=_by(request)))
        if note is not None:
            notes[note] = None
        return trigger_line(row.name, answer), answer.run is not None

    response = _each(model_admin, request, rows, do)
    for note in notes:
        model_admin.say(request, note, messages.WARNING)
    return response


@admin.action(description="Pause …", permissions=["steer"])
def pause(model_admin: RowAdmin, request: Any, rows: Rows) -> Any:
    """Pause jobs, for a reason."""

    def do(row: Any, reason: str | None) -> Said:
        return "; ".join(pause_lines(*paused(desk_of(request), row.name, reason, by=_by(request)))), True

    what = "Their slots are skipped, what waits to be started goes on waiting, what runs goes on."
    return _for_a_reason(model_admin, request, rows, "pause", what, do)


@admin.action(description="Resume", permissions=["steer"])
def resume(model_admin: RowAdmin, request: Any, rows: Rows) -> Any:
    """Let paused jobs go on."""

    def do(row: Any) -> Said:
        before = resumed(desk_of(request), row.name)
        return resume_line(row.name, before), before is not None

    return _each(model_admin, request, rows, do)


@admin.action(description="Cancel …", permissions=["steer"])
def cancel(model_admin: RowAdmin, request: Any, rows: Rows) -> Any:
    """Have runs stop, for a reason."""

    def do(row: Any, reason: str | None) -> Said:
        run = cancelled(desk_of(request), row.record, reason, by=_by(request))
        return cancel_line(run), run.state in ("running", "cancelled")

    what = "What runs is asked to stop, and hears it at its next heartbeat; any other run ends at once."
    return _for_a_reason(model_admin, request, rows, "cancel", what, do)


# one after the other ----------------------------------------------------------------------------


def _by(request: Any) -> str:
    return str(request.user.get_username())


def _each(model_admin: RowAdmin, request: Any, rows: Rows, do: Callable[[Any], Said]) -> Any:
    """Do it to each row, say what became of it, and note it in the admin's history."""
    _say_who_is_gone(model_admin, request, rows)
    for row in rows:
        try:
            line, is_done = do(row)
        except Refused as reason:
            model_admin.say(request, reason.message, messages.ERROR)
            continue
        model_admin.say(request, line, messages.SUCCESS if is_done else messages.WARNING)
        model_admin.log_change(request, row, line)
    if "from_page" in request.POST and len(rows) == 1:
        return HttpResponseRedirect(page_of(model_admin, rows[0]))
    return None


def _say_who_is_gone(model_admin: RowAdmin, request: Any, rows: Rows) -> None:
    """Name what was chosen and is not there: forgotten meanwhile, or gone with old history."""
    if request.POST.get("select_across") == "1":  # all that there are
        return
    there = {row.pk for row in rows}
    for name in dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)):
        if name not in there:
            line = f"there is no {model_admin.opts.verbose_name} {name!r} any more"
            model_admin.say(request, line, messages.ERROR)


def _for_a_reason(
    model_admin: RowAdmin, request: Any, rows: Rows, action: str, what: str,
    do: Callable[[Any, str | None], Said],
) -> Any:  # fmt: skip
    """Ask for a reason first, which is a question whether it is meant as well."""
    form = ReasonForm(request.POST if "sure" in request.POST else None)
    if form.is_valid() or not rows:
        return _each(model_admin, request, rows, lambda row: do(row, form.cleaned_data["reason"]))
    _say_who_is_gone(model_admin, request, rows)
    plural = model_admin.opts.verbose_name_plural if len(rows) != 1 else model_admin.opts.verbose_name
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{action.capitalize()} {len(rows)} {plural}",
        "opts": model_admin.opts, "rows": rows, "action": action, "what": what, "form": form,
        "media": model_admin.media, "checkbox": ACTION_CHECKBOX_NAME,
        "across": request.POST.get("select_across") == "1", "from_page": "from_page" in request.POST,
    }  # fmt: skip
    return TemplateResponse(request, "anarchon/ask.html", context)
