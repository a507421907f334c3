"""Whatever somebody types after a command: a status of 0, 1 or 2, and never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anarchon_celery.protocol import Node, Offer, Registration
from anarchon_celery.schedules import cron
from anarchon_celery.slots import iso
from tests.test_cli import Checked, Desk, T

ENTRIES = {
    "report": {"task": "t", "schedule": cron("30 2 * * *", timezone="Europe/Berlin")},
    "sync": {"task": "t", "schedule": "10s"},
    "chain": {"task": "t", "schedule": Checked()},
}

#: What is meant, nearly: of the first kind commands take names, and so on.
NAMES = ["report", "sync", "chain", "repot", "", "-", "--", "ä" * 300]
MOMENTS = [
    iso(T), "2026-03-29 02:30", "2026-02-30", "now", "9999-12-31", "0001-01-01", "1970-01-01T00:00Z",
    "2026-10-25T02:30+99:00", "26:61", "10000-01-01", "2026-10-10T12:00:30.000000001Z",
]  # fmt: skip
NUMBERS = ["1", "0", "-1", "1e3", "99999999999999999999", "nan", "٣"]
TEXTS = ["deploy", "a" * 201, "\x1b[31m", "[b]", '"', '["eu"]', '{"a": NaN}', "[" * 2_000, "-1s", "1e400s"]

# As the system gives words to a process: without NUL, and with half characters where bytes are no text.
ANY = st.text(st.characters(codec=None, exclude_characters="\0"), max_size=12)
WORDS = {
    kind: st.sampled_from(near) | ANY
    for kind, near in {"NAME": NAMES, "MOMENT": MOMENTS, "NUMBER": NUMBERS, "TEXT": TEXTS}.items()
}

#: What stands in capitals is made up.
COMMANDS = [
    "runs --job NAME", "runs --state TEXT", "runs -n NUMBER", "next NAME --from MOMENT -n NUMBER",
    "trigger NAME --args TEXT --kwargs TEXT", "backfill NAME --from MOMENT --to MOMENT --dry-run",
    "backfill NAME --from MOMENT --to MOMENT --yes --most NUMBER --args TEXT", "pause NAME --reason TEXT",
    "resume NAME", "cancel NAME MOMENT --kind TEXT", "cancel NAME MOMENT --reason TEXT", "forget NAME --yes",
    "prune --history TEXT", "health --node NAME", "upgrade TEXT", "TEXT NAME",
]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "jobs.db"
    made = Desk(beat_schedule=ENTRIES, anarchon_store=f"sqlite:///{path}")
    store = made.store
    store.register(Node(id="i", name="a:1"), [Registration(job=job, hash="h") for job in ENTRIES], now=T)
    store.claim("a:1", [Offer(job="sync", slots=(T,))], nonce="n", now=T)
    store.close()
    yield made
    made.app.close()


@settings(max_examples=70)
@given(data=st.data())
def test_whatever_is_typed_ends_with_a_status(desk, data):
    command = data.draw(st.sampled_from(COMMANDS))
    words = [data.draw(WORDS[word], word) if word in WORDS else word for word in command.split()]
    result = desk.run(*words, *data.draw(st.sampled_from([[], ["--json"]])))
    assert result.exit_code in (0, 1, 2)
    assert "Traceback" not in result.output
