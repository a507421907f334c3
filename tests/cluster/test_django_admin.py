"""The admin of the example project in a real browser: lists, filters, trigger, pause, resume, cancel.

With ``ANARCHON_TEST_SCREENSHOTS=1`` it takes the pictures of docs/django.md.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing
from datetime import timezone
from pathlib import Path

import pytest

from anarchon_celery.protocol import Node, Offer, Registration, RunKey, Sent, Start
from anarchon_celery.schedules import as_schedule, cron, fire_times
from anarchon_celery.slots import DAY, HOUR, MINUTE, SECOND
from anarchon_celery.stores import new_nonce, open_store
from tests.processes import wait_until
from tests.servers import free_port, require
from tests.test_example_project import EXAMPLE, OWN

pytest.importorskip("django")
webdriver = pytest.importorskip("selenium.webdriver")
pytestmark = pytest.mark.cluster

IMAGES = Path(__file__).parents[2] / "docs" / "images"
#: More jobs than the example has, so that the pictures show something.
SETTINGS = """\
from shop.settings import *
DEBUG = True  # it serves the styles
PASSWORD_HASHERS = ['django.contrib.auth.hashers.MD5PasswordHasher']
CELERY_RESULT_EXPIRES = None  # with it Celery adds a job of its own
TASK = 'office.tasks.clear_expired_sessions'
CELERY_BEAT_SCHEDULE |= {
    'backup-orders': {'task': TASK, 'schedule': cron('0 3 * * *', timezone='Europe/Berlin')},
    'newsletter': {'task': TASK, 'schedule': cron('0 9 * * mon', timezone='Europe/Berlin')},
    'reindex-search': {'task': TASK, 'schedule': cron('0 */2 * * *', timezone='Europe/Berlin')},
    'stock-levels': {'task': TASK, 'schedule': '5m', 'options': {'anarchon': {'overlap': 'queue'}}},
}
CELERY_BEAT_SCHEDULE['sync-exchange-rates']['schedule'] = '15m'
"""
SERVE = """\
import sys
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
call_command('migrate', verbosity=0)
User.objects.create_superuser('ann', password='secret')
call_command('runserver', sys.argv[1], use_reloader=False)
"""
SCHEDULES = {
    "backup-orders": cron("0 3 * * *", timezone="Europe/Berlin"), "clear-expired-sessions": "10m",
    "newsletter": cron("0 9 * * mon", timezone="Europe/Berlin"),
    "nightly-report": cron("30 2 * * *", timezone="Europe/Berlin"),
    "reindex-search": cron("0 */2 * * *", timezone="Europe/Berlin"), "send-due-invoices": "1m",
    "stock-levels": "5m", "sync-exchange-rates": "15m",
}  # fmt: skip
WHY = "SMTPServerDisconnected: Connection unexpectedly closed"
WORKERS = ("celery@shop-1:211", "celery@shop-2:305")


def node(name: str, **how) -> Node:
    return Node(id=name, name=name, app="shop", version="0.1.0", celery="5.7.0", python="3.13.0", **how)


class Story:
    """What a store holds of a shop's last hours."""

    def __init__(self, store) -> None:
        self.store, self.now = store, time.time_ns() // 1_000_000
        jobs = [Registration(job=job, hash="h", supervised=True) for job in SCHEDULES]
        self.nodes = [
            *(node(f"{host}:190", schedule="7a81c52d90e4") for host in ("shop-1", "shop-2", "shop-3")),
            *(node(worker, kind="worker") for worker in WORKERS),
        ]
        store.register(self.nodes[0], jobs, now=self.now - DAY)

    def live(self) -> None:
        """All nodes say that they live."""
        for one in self.nodes:
            self.store.register(one, [])

    def slots(self, job: str, count: int) -> list[int]:
        """The last slots of a job."""
        times = fire_times(as_schedule(SCHEDULES[job]), timezone=timezone.utc, job=job)
        return [*times.between(self.now - 8 * DAY, self.now)][-count:]

    def begin(self, job: str, slot: int, worker: str = WORKERS[0]) -> None:
        offer = Offer(job=job, slots=(slot,), overlap="queue")
        (claimed,) = self.store.claim("shop-2:190", [offer], nonce=new_nonce(), now=slot + 40)
        if not claimed.claims[0].won:
            return
        key = RunKey(job, slot)
        self.store.sent([Sent(key=key, dispatch=1, task_id=f"id-{slot}", supervised=True)], now=slot + 50)
        order = Start(key=key, token=f"{job} {slot}", worker=worker, task_id=f"id-{slot}", lease=DAY)
        self.store.start(order, now=slot + 120)

    def end(self, job: str, slot: int, took: int, why: str | None = None) -> None:
        key, outcome = RunKey(job, slot), "succeeded" if why is None else "failed"
        self.store.finish(
            key, f"{job} {slot}", outcome, reason=why, now=min(slot + 120 + took, self.now)
        )

    def tell(self) -> None:
        for job in ("nightly-report", "backup-orders", "newsletter", "reindex-search"):
            for n, slot in enumerate(self.slots(job, 2)):
                self.begin(job, slot, WORKERS[n % 2])
                self.end(job, slot, (37 + 11 * n) * SECOND)
        for slot in self.slots("sync-exchange-rates", 6):
            self.begin("sync-exchange-rates", slot)
            self.end("sync-exchange-rates", slot, 900)
        for n, slot in enumerate(self.slots("send-due-invoices", 20)[:-1]):
            self.begin("send-due-invoices", slot, WORKERS[n % 2])
            self.end("send-due-invoices", slot, 1_400 + 731 * n % 2_900, WHY if n == 17 else None)
        *before, first, second = self.slots("stock-levels", 5)
        for slot in before:
            self.begin("stock-levels", slot)
            self.end("stock-levels", slot, 2 * MINUTE)
        self.begin("stock-levels", first, WORKERS[1])
        self.begin("stock-levels", second)  # it waits
        self.store.pause("reindex-search", reason="moving to the new cluster", by="ben", now=self.now - HOUR)


@pytest.fixture
def site(tmp_path, processes, redis_url):
    """The project, its store with a story, and a server."""
    folder = tmp_path / "project"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("var", "broker", "__pycache__", "*.db*"))
    (folder / "many.py").write_text(SETTINGS)
    how = {"cwd": folder, "env": {**OWN, "DJANGO_SETTINGS_MODULE": "many", "REDIS_URL": redis_url}}
    address = f"127.0.0.1:{free_port()}"
    server = processes.python("-c", SERVE, address, name="site", **how)
    with closing(open_store(redis_url, prefix="shop")) as store:
        story = Story(store)
        story.tell()
        server.wait_for("Quit the server", 60)
        yield story, f"http://{address}/admin/"
        assert "Internal Server Error" not in server.output, server.tail()


@pytest.fixture
def browser(tmp_path):
    driver = require("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    own = f"user-data-dir={tmp_path / 'chromium'}"
    as_root_in_a_container = ("no-sandbox", "disable-gpu", "disable-dev-shm-usage")
    for word in ("headless=new", "window-size=1240,850", "hide-scrollbars", own, *as_root_in_a_container):
        options.add_argument(f"--{word}")
    service = webdriver.ChromeService(executable_path=driver)
    made = webdriver.Chrome(options=options, service=service)  # nothing is fetched: both paths are given
    try:
        yield Browser(made)
    finally:
        made.quit()


class Browser:
    """What somebody does with the admin."""

    def __init__(self, driver) -> None:
        self.driver = driver

    def all(self, selector: str) -> list:
        return self.driver.find_elements("css selector", selector)

    def click(self, selector: str) -> None:
        """Click, and wait for the page that comes then."""
        before = self.driver.find_element("css selector", "html")
        self.driver.find_element("css selector", selector).click()
        html = ("css selector", "html")
        wait_until(lambda: before.id != self.driver.find_element(*html).id, why=lambda: selector)

    def fill(self, **fields: str) -> None:
        for name, text in fields.items():
            self.driver.find_element("css selector", f"[name={name}]").send_keys(text)

    def rows(self) -> list[str]:
        return [" ".join(row.text.split()) for row in self.all("#result_list tbody tr")]

    def act(self, action: str, *labels: str) -> list[str]:
        """Choose rows, by how they begin, and an action; return what the page says that comes then."""
        for row in self.all("#result_list tbody tr"):
            if " ".join(row.text.split()).startswith(labels):
                row.find_element("css selector", "input.action-select").click()
        self.driver.find_element("css selector", f"select[name=action] option[value={action}]").click()
        self.click("button[name=index]")
        return self.said()

    def said(self) -> list[str]:
        return [one.text for one in self.all("ul.messagelist li")]

    def picture(self, name: str) -> None:
        if os.environ.get("ANARCHON_TEST_SCREENSHOTS"):
            self.driver.execute_script("document.getElementById('nav-sidebar').remove()")
            self.driver.execute_script("document.getElementById('toggle-nav-sidebar').remove()")
            IMAGES.mkdir(exist_ok=True)
            self.driver.save_screenshot(str(IMAGES / f"{name}.png"))


def test_jobs_are_listed_filtered_triggered_paused_and_resumed(browser, site):
    (story, url), store = site, site[0].store
    story.live()
    browser.driver.get(f"{url}anarchon/job/")
    browser.fill(username="ann", password="secret")
    browser.click("[type=submit]")

    # The lists.
    assert [*SCHEDULES] == [row.split()[0] for row in browser.rows()]
    browser.picture("admin-jobs")
    browser.click("#changelist-filter a[href='?paused=yes']")
    (row,) = browser.rows()
    assert row.startswith("reindex-search cron 0 */2 * * * Europe/Berlin ")
    assert "paused moving to the new cluster (by ben, " in row

    # Resume, pause with a reason, trigger; each is in the store, in her name.
    (said,) = browser.act("resume", "reindex-search")
    assert said.startswith("reindex-search goes on; it was paused: moving to the new cluster (by ben, ")
    browser.driver.get(f"{url}anarchon/job/")
    assert [] == browser.act("pause", "newsletter", "backup-orders")
    browser.fill(reason="no <mail> today")
    browser.click("[name=sure]")
    assert [True] * 2 == [" is paused: no <mail> today (by ann, " in line for line in browser.said()]
    paused = {job.name: (job.paused, job.paused_by) for job in store.jobs() if job.paused is not None}
    assert dict.fromkeys(("backup-orders", "newsletter"), ("no <mail> today", "ann")) == paused
    said = browser.act("trigger", "newsletter", "nightly-report")
    manual = "(manual): dispatched at the next poll of a beat"
    assert [True] * 2 == [line.endswith(manual) for line in said[:2]]
    asked = [(run.job, run.asked_by) for run in store.runs() if run.kind == "manual"]
    assert [("newsletter", "ann"), ("nightly-report", "ann")] == sorted(asked)

    # The page of a job, and its button.
    browser.driver.find_element("link text", "stock-levels").click()
    wait_until(lambda: browser.all(".anarchon-table"))
    assert 2 == len(browser.all(".anarchon-table table"))
    browser.click("button[value=trigger]")
    assert "waits for the runs of its job" in browser.said()[0]

    # Runs: filtered by state, and one is cancelled.
    browser.driver.get(f"{url}anarchon/run/")
    browser.picture("admin-runs")
    assert "stock-levels buffered" in " ".join(browser.rows())
    browser.click("#changelist-filter a[href='?state=failed']")
    (row,) = browser.rows()
    assert f"send-due-invoices failed {WHY} 1 (scheduled) celery@shop-2:305 0.1 s 0.1 s 2.2 s" in row
    browser.driver.get(f"{url}anarchon/run/?state=running")
    (run,) = store.runs(state="running")
    browser.click("#result_list a")
    browser.click("button[value=cancel]")
    browser.fill(reason="wrong depot")
    browser.click("[name=sure]")
    assert "is asked to stop: celery@shop-2:305 hears it at its next heartbeat" in browser.said()[0]
    assert "cancelled by ann: wrong depot" == store.run(run.key).stop
