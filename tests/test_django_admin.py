"""The admin without a browser: what it lists, finds and does, who may, and what it says if it cannot."""

from __future__ import annotations

import re
from html import unescape

import pytest

from anarchon_celery.protocol import ACTIVE, ENDED, Node, Registration, Request, RunKey
from anarchon_celery.schedules import cron, once
from anarchon_celery.slots import HOUR, iso
from anarchon_celery.stores import memory
from tests.servers import free_port
from tests.test_cli import Desk, Never, Raising, T

pytest.importorskip("django")

from tests import django_site  # after that

django_site.set_up()

from django.contrib.admin.models import LogEntry  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402

HTML = "<b>bold</b> & 'co'/ä"
ENTRIES = {
    "report": {
        "task": "proj.report", "schedule": cron("30 * * * *", timezone="Europe/Berlin"), "args": ("eu",),
    },
    "sync": {"task": "t", "schedule": "10s", "options": {"anarchon": {"overlap": "allow"}}},
    HTML: {"task": "t", "schedule": "1h"},
}  # fmt: skip
STATES = ACTIVE | ENDED
RUN = "scheduled 2026-10-10T12:00:30.000Z report"
ALL = ("view_job", "change_job", "view_run", "change_run", "view_node")


@pytest.fixture(scope="module", autouse=True)
def tables():
    django_site.make_tables()


@pytest.fixture
def desk(monkeypatch):
    """Three jobs of which the store has heard, a story of two of them, and a beat that lives."""
    made = Desk(beat_schedule={**ENTRIES}, timezone="UTC")
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + 2_000)
    jobs = [Registration(job=job, hash="h") for job in ENTRIES]
    made.store.register(Node(id="i", name="a:1", app="proj"), jobs, now=T)
    made.story()
    with django_site.project_of(made.app):
        yield made
    made.close()


class Browser:
    """Somebody who is logged in."""

    def __init__(self, name: str, *rights: str, **how) -> None:
        self.client = Client(enforce_csrf_checks=False)
        self.client.force_login(django_site.user(name, *rights, **how))

    def get(self, path: str, status: int = 200) -> str:
        """What a page says, without what is markup."""
        response = self.client.get(f"/under/admin/anarchon/{path}", follow=status == 200)
        assert status == response.status_code, response.content.decode()
        self.html = response.content.decode()
        return text_of(self.html)

    def post(self, model: str, action: str, *names: str, status: int = 200, **more: str) -> list[str]:
        """The messages after an action."""
        data = {"action": action, "index": "0", "_selected_action": names, **more}
        response = self.client.post(f"/under/admin/anarchon/{model}/", data, follow=True)
        assert status == response.status_code
        self.html = response.content.decode()
        lines = re.findall(r'<li class="(?:success|warning|error)">(.*?)</li>', self.html)
        return [text_of(line) for line in lines]


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


@pytest.fixture
def ann():
    return Browser("ann", *ALL)


def rows(browser: Browser) -> list[str]:
    """The rows of the list that is shown."""
    body = re.search(r'<table id="result_list">.*?<tbody>(.*?)</tbody>', browser.html, re.DOTALL)
    return [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", body[1], re.DOTALL)] if body else []


# lists ------------------------------------------------------------------------------------------


def test_jobs(desk, ann):
    desk.store.pause("sync", reason="moved <now>", by="bob", now=T + 1_200)
    said = ann.get("job/")
    assert f"{desk.app.conf.anarchon_store} · 3 beats and 0 workers alive" in said
    html, report, sync = rows(ann)
    assert html.startswith(f"{HTML} every 1h UTC Sat 2026-10-10 15:00:00 2026-10-10T13:00:00.000Z")
    assert report.startswith("report cron 30 * * * * Europe/Berlin Sat 2026-10-10 14:30:00 2026-10-10T12:30")
    assert "skipped Sat 2026-10-10 14:00:31 1 running" in report
    assert "failed Sat 2026-10-10 14:00:30 paused" in sync
    assert sync.endswith("paused moved <now> (by bob, 2026-10-10T12:00:31.200Z)")
    assert "<b>bold" not in ann.html


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("paused=yes", ["sync"]), ("paused=no&active=no", [HTML]), ("active=yes", ["report"]),
        ("q=YN", ["sync"]), ("q=%3Cb", [HTML]), ("q=nothing", []),
    ],
)  # fmt: skip
def test_jobs_that_are_looked_for(desk, ann, query, names):
    desk.store.pause("sync", reason="moved", by="bob", now=T + 1_200)
    ann.get(f"job/?{query}")
    assert names == [next(name for name in ENTRIES if row.startswith(name)) for row in rows(ann)]


def test_the_last_run_of_a_rare_job_is_shown_too(desk, ann, monkeypatch):
    from anarchon_celery.django import jobs

    monkeypatch.setattr(jobs, "MOST", 1)
    ann.get("job/")
    assert ["skipped", "failed"] == [re.search("skipped|failed", row)[0] for row in rows(ann)[1:]]


def test_runs_are_looked_for_of_those_jobs_alone_that_are_shown(desk, ann, monkeypatch):
    from anarchon_celery.django import jobs

    asked = []
    runs = memory.MemoryStore.runs
    monkeypatch.setattr(memory.MemoryStore, "runs", lambda *a, **how: (asked.append(how), runs(*a, **how))[1])
    monkeypatch.setattr(jobs, "MOST", 1)
    monkeypatch.setattr(jobs.JobAdmin, "list_per_page", 1)
    for path in ("job/?p=3", "job/?q=sync", f"job/{page('sync')}"):
        asked.clear()
        assert "failed" in ann.get(path)
        assert {"sync"} == {how["job"] for how in asked if "job" in how}
    ann.get("job/?all=")
    assert ["skipped", "failed"] == [re.search("skipped|failed", row)[0] for row in rows(ann)[1:]]


def test_an_entry_that_a_beat_refuses_is_said(desk, ann):
    desk.app.conf.beat_schedule["bad"] = {"task": "t", "schedule": "often"}
    assert "entry 'bad': " in ann.get("job/")


def test_schedules_that_fire_no_more_or_not_for_long_or_cannot_be_asked(desk, ann):
    """A page says why there are no fire times, in the words of the command."""
    more = {"past": once("2026-10-01T09:00Z"), "idle": Never(), "bad": Raising()}
    desk.app.conf.beat_schedule |= {name: {"task": "t", "schedule": one} for name, one in more.items()}
    assert "entry 'bad': ZeroDivisionError: no such luck; this job stays out" in ann.get("job/")
    bad, idle, past = (row for row in rows(ann) if row.startswith(tuple(more)))
    assert "bad <Checked> UTC - - - not in the store yet; its schedule fails" == bad
    assert re.match(r"idle <Never> UTC not before \S+ 2026-11-\d\d [0-9:]+ 2026-11-\S+Z -", idle)
    assert past.startswith("past once 2026-10-01T09:00:00.000Z UTC never - -")
    assert "Next fire times ZeroDivisionError: no such luck Last runs" in ann.get(f"job/{page('bad')}")
    said = ann.get(f"job/{page('idle')}")
    assert re.search(r"it does not fire before 20\S+Z; its schedule is not asked about more at once", said)
    said = ann.get(f"job/{page('past')}")
    assert re.search(rf"it does not fire any more after {iso(T + 2_000)[:-5]}\.\d+Z", said)


def test_a_job_that_only_the_store_knows(desk, ann):
    desk.store.register(Node(id="k", name="b:1"), [Registration(job="old", hash="every 10000 ms")], now=T)
    said = ann.get(f"job/{page('old')}")
    assert "Next fire times not in this app Last runs no runs" in said
    assert "every 10s" in said


def test_runs_are_shown_as_the_command_shows_them(desk, ann):
    ann.get("run/")
    slot = "Sat 2026-10-10 14:00:30 2026-10-10T12:00:30.000Z"
    assert [
        "Sat 2026-10-10 14:00:31 2026-10-10T12:00:31.000Z report skipped overlap - - - -",
        f"{slot} report running 1 (scheduled) celery@c:3 0.0 s 0.0 s -",
        f"{slot} sync failed ValueError: no [bold]markup[/bold] 1 (scheduled) celery@c:3 0.0 s 0.0 s 1.5 s",
    ] == rows(ann)[:3]
    assert "60 slots until" in rows(ann)[3]


@pytest.mark.parametrize(
    ("query", "states"),
    [
        ("state=running", ["running"]), ("job=sync", ["failed", "missed"]), ("q=REP", ["skipped", "running"]),
        ("trigger=manual", []), ("job=sync&state=missed&trigger=catch-up", ["missed"]),
    ],
)  # fmt: skip
def test_runs_that_are_looked_for(desk, ann, query, states):
    ann.get(f"run/?{query}")
    assert states == [re.search("skipped|running|failed|missed", row)[0] for row in rows(ann)]


def test_the_runs_of_several_jobs_that_are_searched_for_are_in_one_order(desk, ann):
    for name, ago in ((HTML, 1_500), ("report", 1_200)):
        asked = Request(job=name, by="bob", overlap="allow")
        desk.store.trigger(asked, nonce=name, now=T + 2_000 - ago)
    ann.get("run/?q=O")
    assert [
        ("report", "skipped"), ("report", "released"), (HTML, "released"), ("report", "running"),
    ] == [  # newest first
        next((name, state) for name in ENTRIES for state in STATES if f" {name} {state}" in row)
        for row in rows(ann)
    ]  # fmt: skip


def test_of_many_jobs_only_the_one_that_is_chosen_is_offered(desk, ann, monkeypatch):
    from anarchon_celery.django import runs

    offered = f'href="?job={"report"}"'
    ann.get("run/")
    assert offered in ann.html
    monkeypatch.setattr(runs, "MOST_JOBS", 2)
    ann.get("run/")
    assert offered not in ann.html
    ann.get("run/?job=sync")
    assert ["failed", "missed"] == [re.search("failed|missed|running", row)[0] for row in rows(ann)]
    ann.get("run/?job=gone")
    assert [] == rows(ann), "and not the runs of all others"


def test_there_are_pages(desk, ann, monkeypatch):
    from anarchon_celery.django.runs import RunAdmin

    monkeypatch.setattr(RunAdmin, "list_per_page", 3)
    ann.get("run/?p=2")
    assert ["missed"] == [re.search("missed|failed", row)[0] for row in rows(ann)]


def test_what_is_no_filter_is_ignored_as_the_admin_does(desk, ann):
    for path in ("run/?fence=3", "job/?view__x=3", "run/?p=99"):
        ann.get(path)
        assert rows(ann)


def test_nodes(desk, ann):
    assert "a:1 beat alive Sat 2026-10-10 14:00:30" in ann.get("node/")
    assert 3 == len(rows(ann))


# pages of one -----------------------------------------------------------------------------------


def page(name: str) -> str:
    from django.contrib.admin.utils import quote

    return f"{quote(name)}/change/"


def test_the_page_of_a_job(desk, ann):
    said = ann.get(f"job/{page('report')}")
    assert "overlap skip, catch-up latest" in said
    assert "Sat 2026-10-10 14:30:00 2026-10-10T12:30:00.000Z 2026-10-10T14:30:00.000+02:00" in said
    assert "1 (scheduled) celery@c:3" in said
    assert "Trigger Pause … History" in said
    assert "Save" not in said
    assert HTML in ann.get(f"job/{page(HTML)}")
    assert "<b>bold" not in ann.html


def test_the_page_of_a_run(desk, ann):
    ann.get("run/")
    paths = re.findall(r'href="/under/admin/anarchon/run/([^"?]+/change/)"', ann.html)
    said = ann.get(f"run/{paths[1]}")
    for part in (f"report @ {iso(T)}", "Task id: id-report", "Cancel …", "Sat 2026-10-10 14:00:30"):
        assert part in said
    assert "Cancel …" not in ann.get(f"run/{paths[2]}")
    assert "View site" in ann.get(f"run/{page('scheduled 2026 nothing')}"), "there is none: the index says so"


# actions ----------------------------------------------------------------------------------------


def test_a_job_is_triggered_in_the_name_of_the_user(desk, ann):
    said = ann.post("job", "trigger", "report", "sync")
    assert [
        f"report @ {iso(T + 2_000)} (manual): waits for the runs of its job that are before it",
        f"sync @ {iso(T + 2_000)} (manual): dispatched at the next poll of a beat",
    ] == said
    assert {("report", "ann"), ("sync", "ann")} == {
        (run.job, run.asked_by) for run in desk.store.runs() if run.kind == "manual"
    }
    assert {*said} <= set(LogEntry.objects.values_list("change_message", flat=True))


def test_without_a_beat_it_says_that_it_waits(desk, ann, monkeypatch):
    monkeypatch.setattr(memory, "_wall_clock", lambda: T + HOUR)
    assert "no beat is alive: it waits until one is started" == ann.post("job", "trigger", "sync")[-1]


def test_pause_asks_why(desk, ann):
    assert [] == ann.post("job", "pause", "report", HTML)
    assert "Pause 2 jobs" in text_of(ann.html)
    assert "<b>bold" not in ann.html
    assert None is desk.store.jobs()[1].paused
    said = ann.post("job", "pause", "report", HTML, sure="Pause", reason="no   <deploys>")
    at = "(by ann, 2026-10-10T12:00:32.000Z)"
    assert [f"{job} is paused: no <deploys> {at}" for job in ("report", HTML)] == said
    assert ("no <deploys>", "ann") == (desk.store.jobs()[1].paused, desk.store.jobs()[1].paused_by)
    assert [f"report goes on; it was paused: no <deploys> {at}", "sync is not paused"] == ann.post(
        "job", "resume", "report", "sync"
    )
    assert "report is paused: no reason given" in ann.post("job", "pause", "report", sure="1", reason=" ")[0]


def test_a_reason_that_no_store_keeps_is_asked_for_again(desk, ann):
    for reason in ("x" * 201, "bell \a"):
        assert [] == ann.post("job", "pause", "report", sure="1", reason=reason)
        assert "errorlist" in ann.html
    assert None is desk.store.jobs()[1].paused


def test_all_that_are_filtered_are_chosen_at_once(desk, ann):
    data = {"action": "pause", "select_across": "1", "_selected_action": "report", "sure": "1"}
    data["reason"] = "all"
    ann.client.post("/under/admin/anarchon/job/?active=no", data)
    assert {HTML: "all", "report": None, "sync": "all"} == {job.name: job.paused for job in desk.store.jobs()}


def test_a_run_is_cancelled(desk, ann):
    names = [f"scheduled {iso(T)} {job}" for job in ("report", "sync")]
    assert [] == ann.post("run", "cancel", *names)
    assert "Cancel 2 runs" in text_of(ann.html)
    assert [
        f"report @ {iso(T)} is asked to stop: celery@c:3 hears it at its next heartbeat",
        f"sync @ {iso(T)} is over already: failed",
    ] == ann.post("run", "cancel", *names, sure="1", reason="wrong")
    assert "cancelled by ann: wrong" == desk.store.run(RunKey("report", T)).stop


def test_the_buttons_of_a_page_lead_back_to_it(desk, ann):
    ann.post("job", "trigger", "sync", from_page="1")
    assert "Next fire times" in text_of(ann.html)


def test_a_job_of_which_no_node_has_told_is_one_line(desk, ann):
    desk.app.conf.beat_schedule["new"] = ENTRIES["sync"]
    line = "no node has told the store of 'new' yet: start a beat first"
    assert [line, f"sync @ {iso(T + 2_000)} (manual): dispatched at the next poll of a beat"] == ann.post(
        "job", "trigger", "new", "sync"
    )


def test_what_is_gone_meanwhile_is_named(desk, ann):
    gone = "there is no job 'gone' any more"
    done = f"sync @ {iso(T + 2_000)} (manual): dispatched at the next poll of a beat"
    assert [gone, done] == ann.post("job", "trigger", "gone", "sync")
    assert [gone] == ann.post("job", "pause", "gone")
    assert [gone] == ann.post("job", "pause", "gone", "sync") and "Pause 1 job" in text_of(ann.html)
    assert [f"there is no run '{RUN}s' any more"] == ann.post("run", "cancel", f"{RUN}s", from_page="1")


def test_a_job_that_the_filter_does_not_let_through_any_more_is_there(desk, ann):
    data = {"action": "resume", "index": "0", "_selected_action": ["sync"]}
    answer = ann.client.post("/under/admin/anarchon/job/?paused=yes", data, follow=True)
    assert "sync is not paused" in text_of(answer.content.decode()), "somebody else was quicker"


@pytest.mark.parametrize("path", ["run/?job=%00", "run/scheduled 2026-10-10T12:00:30.000Z %00/change/"])
def test_a_name_that_no_job_has_is_asked_of_no_store(desk, ann, monkeypatch, path):
    def refused(*_, **how):
        raise AssertionError("a database has no such text")

    monkeypatch.setattr(memory.MemoryStore, "run", refused)
    monkeypatch.setattr(memory.MemoryStore, "runs", refused)
    ann.get(path)


# who may ----------------------------------------------------------------------------------------


def test_who_may_only_look_has_no_buttons_and_is_refused(desk):
    eve = Browser("eve", "view_job", "view_run")
    eve.get("job/")
    assert 3 == len(rows(eve))
    assert 'name="action"' not in eve.html
    assert "Trigger" not in eve.get(f"job/{page('report')}")
    eve.post("job", "trigger", "report", status=403)
    eve.post("run", "cancel", f"scheduled {iso(T)} report", sure="1", status=403)
    assert {"scheduled"} == {run.kind for run in desk.store.runs()}
    assert None is desk.store.run(RunKey("report", T)).stop


def test_who_has_no_right_sees_nothing(desk):
    tom = Browser("tom")
    for path in ("job/", "run/", "node/", "job/report/change/", "job/report/history/"):
        tom.get(path, 403)


def test_nobody_adds_edits_or_deletes(desk):
    root = Browser("root", is_superuser=True)
    root.get("job/add/", 403)
    root.get(f"job/{page('report')}".replace("change", "delete"), 403)
    assert 403 == root.client.post(f"/under/admin/anarchon/job/{page('report')}", {"name": "x"}).status_code


def test_a_request_from_another_site_does_nothing(desk):
    client = Client(enforce_csrf_checks=True)
    client.force_login(django_site.user("ann", *ALL))
    data = {"action": "trigger", "index": "0", "_selected_action": "sync"}
    assert 403 == client.post("/under/admin/anarchon/job/", data).status_code
    assert {"scheduled"} == {run.kind for run in desk.store.runs()}


# what is not right ------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["job/", "run/", "node/", f"run/{RUN}/change/", "job/x/history/"])
def test_a_store_that_is_away_is_one_line(ann, path):
    port = free_port()
    desk = Desk(anarchon_store=f"redis://user:hush@127.0.0.1:{port}/1", anarchon_claim_timeout=2)
    with django_site.project_of(desk.app):
        said = ann.get(path, 503)
    assert f"127.0.0.1:{port}" in said
    assert "hush" not in ann.html
    desk.app.close()


def test_a_wrong_setting_is_one_line(ann):
    desk = Desk(anarchon_lease="long")
    with django_site.project_of(desk.app):
        assert "anarchon_lease='long': a duration above 0" in ann.get("job/", 503)
    desk.app.close()


def test_without_an_app_it_says_what_to_do(ann):
    with django_site.project_of(None):
        assert "there is no Celery app: import the one of the project's celery.py" in ann.get("job/", 503)


def test_a_site_of_ones_own_links_to_itself(desk, ann):
    for path in ("job/", "job/report/change/", f"run/{page(RUN)}"):
        html = ann.client.get(f"/operations/anarchon/{path}").content.decode()
        assert 'href="/operations/' in html
        assert "/under/admin/" not in html
    data = {"action": "pause", "_selected_action": "report"}
    assert "/under/admin/" not in ann.client.post("/operations/anarchon/job/", data).content.decode()


def test_the_index_names_them(desk, ann):
    assert ann.get("").endswith("Jobs View Nodes View Runs View")


def test_no_database_is_asked_for_them(desk, capsys):
    call_command("dumpdata", "anarchon", all=True)
    assert "[]" == capsys.readouterr().out.strip()
    call_command("makemigrations", check=True, dry_run=True)
    assert "No changes detected" in capsys.readouterr().out
