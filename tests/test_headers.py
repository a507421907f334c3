"""The header of a message: written by beat, read by a worker, perhaps of another version."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anarchon_celery import headers
from anarchon_celery.config import Policy
from anarchon_celery.errors import HeaderError
from anarchon_celery.protocol import Run, RunKey, Start
from anarchon_celery.slots import from_iso

T = from_iso("2026-10-10T12:00:30.250Z")
RUN = Run(job="report", slot=T, dispatch=2, trigger="catch-up", claimed_at=T + 17, nonce="n", node="a:1")
POLICY = Policy(
    lease=60_000, heartbeat=1_500, start_timeout=250, stop_grace=0, max_runtime=90_000, overlap="allow",
    handover=False,
)  # fmt: skip
WRITTEN = {
    "v": 1,
    "id": "a1",
    "job": "report",
    "slot": "2026-10-10T12:00:30.250Z",
    "kind": "scheduled",
    "dispatch": 2,
    "trigger": "catch-up",
    "task": "proj.report",
    "claimed": "2026-10-10T12:00:30.267Z",
    "lease": 60,
    "heartbeat": 1.5,
    "start_timeout": 0.25,
    "stop_grace": 0,
    "max_runtime": 90,
    "overlap": "allow",
    "handover": False,
    "supervised": None,
}
OPTIONAL = ("id", "max_runtime", "supervised", "v")


def test_what_is_written():
    assert WRITTEN == headers.write(RUN, "proj.report", POLICY, task_id="a1")


def test_of_a_run_that_somebody_asked_for_the_arguments_are_written_too():
    asked_for = replace(RUN, kind="manual", arguments="[[1], null]")
    header = headers.write(asked_for, "proj.report", POLICY, task_id="a1")
    assert WRITTEN | {"kind": "manual", "arguments": "[[1], null]"} == header
    read = headers.read(header)
    start = read.start(token="t", worker="w", task_id="a1")
    assert ("manual", "[[1], null]") == (start.key.kind, start.arguments)


def test_it_travels_as_json():
    sent = json.loads(json.dumps(headers.write(RUN, "proj.report", POLICY, task_id="a1"), allow_nan=False))
    assert WRITTEN == sent


def test_what_was_written_is_read():
    read = headers.read(json.loads(json.dumps(headers.write(RUN, "proj.report", POLICY, task_id="a1"))))
    expected = headers.Order(
        key=RunKey("report", T, "scheduled"), task="proj.report", dispatch=2, trigger="catch-up",
        claimed_at=T + 17, lease=60_000, heartbeat=1_500, start_timeout=250, overlap="allow", handover=False,
        stop_grace=0, max_runtime=90_000, arguments=None, token=None, header=WRITTEN,
    )  # fmt: skip
    assert expected == read


@pytest.mark.parametrize("policy", [Policy(), Policy(max_runtime=None), Policy(lease=1, heartbeat=1), POLICY])
def test_durations_come_back_to_the_millisecond(policy):
    read = headers.read(headers.write(RUN, "t", policy, task_id="a1"))
    named = ("lease", "heartbeat", "start_timeout", "stop_grace", "max_runtime", "overlap", "handover")
    assert {name: getattr(policy, name) for name in named} == {name: getattr(read, name) for name in named}


def test_each_dispatch_has_a_header_of_its_own():
    first, second = (headers.write(replace(RUN, dispatch=n), "t", POLICY, task_id="a1") for n in (1, 2))
    assert (1, 2) == (first["dispatch"], second["dispatch"])
    assert first is not second


def test_a_token_is_read_and_not_carried_on():
    marked = WRITTEN | {"token": "t1"}
    read = headers.read(marked)
    assert ("t1", WRITTEN) == (read.token, read.header)
    assert "t1" == marked["token"], "what was read is left as it was"


def test_a_word_that_a_later_writer_adds_is_passed_by_and_carried_on():
    assert WRITTEN | {"colour": "blue"} == headers.read(WRITTEN | {"colour": "blue"}).header


def test_what_the_store_is_asked():
    expected = Start(
        key=RunKey("report", T), token="t1", worker="celery@b:2", task_id="id", dispatch=2,
        trigger="catch-up", claimed_at=T + 17, lease=60_000, overlap="allow",
    )  # fmt: skip
    assert expected == headers.read(WRITTEN).start(token="t1", worker="celery@b:2", task_id="id")


@pytest.mark.parametrize("version", [0, 2, "1", None, "x\ny", [1], {"v": 1}])
def test_a_version_of_others_is_refused_in_one_line(version):
    with pytest.raises(HeaderError) as refused:
        headers.read(WRITTEN | {"v": version})
    assert f"header version {version!r} is unknown to this worker, which reads 1" == str(refused.value)
    assert 1 == len(str(refused.value).splitlines())


@pytest.mark.parametrize(
    ("version", "said"),
    [("a" * 20_000, f"'{'a' * 96}..."), (10**5_000, "<int>"), ([10**5_000], "<list>")],
    ids=["text", "number", "list"],
)
def test_a_version_as_long_as_a_file_makes_a_short_line(version, said):
    with pytest.raises(HeaderError) as refused:
        headers.read(WRITTEN | {"v": version})
    assert f"header version {said} is unknown to this worker, which reads 1" == str(refused.value)


def test_no_version_is_no_version_of_ours():
    with pytest.raises(HeaderError, match="header version None is unknown"):
        headers.read({key: value for key, value in WRITTEN.items() if key != "v"})


@pytest.mark.parametrize("missing", [name for name in WRITTEN if name not in OPTIONAL])
def test_a_missing_word_is_named_in_one_line(missing):
    with pytest.raises(HeaderError) as refused:
        headers.read({key: value for key, value in WRITTEN.items() if key != missing})
    assert f"the 'anarchon' header cannot be read: {missing} is missing" == str(refused.value)


def test_max_runtime_may_be_missing():
    read = headers.read({key: value for key, value in WRITTEN.items() if key != "max_runtime"})
    assert read.max_runtime is None


INSTANT = "an instant is right, such as 2026-10-10T12:00:30.000Z"
NUMBER = "a whole number from 0 to 1000000 is right"
ABOVE, FROM = (f"seconds {word} 0 to 3153600000 are right, such as 30" for word in ("above", "from"))


@pytest.mark.parametrize(
    ("name", "value", "said", "right"),
    [
        ("job", 5, "5", "a text is right"),
        ("job", "", "''", "a text is right"),
        ("slot", "yesterday", "'yesterday'", INSTANT),
        ("slot", 5, "5", INSTANT),
        ("slot", None, "<NoneType>", INSTANT),
        ("slot", "2026-10-10T12:00:30", "'2026-10-10T12:00:30'", INSTANT),
        ("slot", "2026-13-10T12:00:30Z", "'2026-13-10T12:00:30Z'", INSTANT),
        ("claimed", [], "<list>", INSTANT),
        ("claimed", "a\nb", "'a\\nb'", INSTANT),
        ("dispatch", "a", "'a'", NUMBER),
        ("dispatch", None, "<NoneType>", NUMBER),
        ("dispatch", {}, "<dict>", NUMBER),
        ("dispatch", float("inf"), "inf", NUMBER),
        ("dispatch", -1, "-1", NUMBER),
        ("dispatch", 10**30, str(10**30), NUMBER),
        ("lease", "x", "'x'", ABOVE),
        ("lease", "1m", "'1m'", ABOVE),
        ("lease", None, "<NoneType>", ABOVE),
        ("lease", float("inf"), "inf", ABOVE),
        ("lease", float("nan"), "nan", ABOVE),
        ("lease", -1, "-1", ABOVE),
        ("lease", 0, "0", ABOVE),
        ("lease", 1e300, "1e+300", ABOVE),
        ("lease", 10**400, f"1{'0' * 96}...", ABOVE),
        ("heartbeat", [], "<list>", ABOVE),
        ("heartbeat", -0.5, "-0.5", ABOVE),
        ("start_timeout", {}, "<dict>", ABOVE),
        ("start_timeout", -1, "-1", ABOVE),
        ("stop_grace", "soon", "'soon'", FROM),
        ("stop_grace", -1, "-1", FROM),
        ("max_runtime", "never", "'never'", ABOVE),
        ("max_runtime", -1, "-1", ABOVE),
        ("kind", "leap", "'leap'", "one of backfill, leapt, manual, scheduled is right"),
        ("kind", ["manual"], "<list>", "one of backfill, leapt, manual, scheduled is right"),
        ("trigger", None, "<NoneType>", "one of backfill, catch-up, manual, scheduled, takeover is right"),
        ("overlap", "skp", "'skp'", "one of allow, cancel, queue, skip is right"),
    ],
)
def test_what_cannot_be_meant_is_told_by_its_name_its_value_and_what_is_right(name, value, said, right):
    with pytest.raises(HeaderError) as refused:
        headers.read(WRITTEN | {name: value})
    assert f"the 'anarchon' header cannot be read: {name}={said}: {right}" == str(refused.value)


@pytest.mark.parametrize("header", [None, "v1", 1, [("v", 1)], b"{}"])
def test_what_is_no_mapping_is_refused(header):
    with pytest.raises(HeaderError) as refused:
        headers.read(header)
    assert f"the 'anarchon' header is {type(header).__name__}, not a mapping" == str(refused.value)
