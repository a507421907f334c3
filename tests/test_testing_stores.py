"""StoreContract, as somebody with a store of their own uses it; and how such a store is found."""

from __future__ import annotations

import inspect
import re

import pytest
from celery import Celery

from anarchon_celery.config import Config
from anarchon_celery.errors import SettingError, StoreUnusable
from anarchon_celery.protocol import Renewal
from anarchon_celery.slots import iso
from anarchon_celery.stores import open_store
from anarchon_celery.stores.memory import MemoryStore
from anarchon_celery.testing import StoreContract, TestingError
from anarchon_celery.testing.contract.story import HOUR, Story, T
from tests import shelf


class TestShelf(StoreContract):
    """A store that is no part of this package."""

    # 1,000 steps, each with 200 runs in a file.
    test_all_leases_of_a_process_are_renewed_in_one_call = None  # type: ignore[assignment]

    @pytest.fixture
    def make_store(self, tmp_path):
        def make(prefix: str = "anarchon") -> shelf.ShelfStore:
            return shelf.open_store(f"shelf://{tmp_path}/jobs", prefix=prefix, options={}, within=9.0)

        return make

    @pytest.fixture
    def wipe_store(self, tmp_path):
        return lambda: [path.unlink() for path in tmp_path.glob("jobs-*")]


# Stores that break a promise --------------------------------------------------------------------


class LetsTwoWin(MemoryStore):
    def claim(self, node, offers, *, nonce, now=None):
        """Who asks last wins."""
        with self.opened() as room:
            for offer in offers:
                for slot in offer.slots:
                    if room.ledger is not None:
                        room.ledger.active.get(offer.job, {}).clear()
                        room.ledger.runs = {k: r for k, r in room.ledger.runs.items() if k.slot != slot}
        return super().claim(node, offers, nonce=nonce, now=now)


class LosesNoLease(MemoryStore):
    def renew(self, holdings, *, now=None):
        return [Renewal(answer="ok") for _ in holdings]


class EndsForAnyone(MemoryStore):
    def finish(self, key, token, outcome, *, reason=None, now=None):
        run = self.run(key)
        return super().finish(key, run.token if run and run.token else token, outcome, reason=reason, now=now)


class ForgetsPauses(MemoryStore):
    def pause(self, job, *, reason, by, now=None):
        return True


def broken_by(kind: type[MemoryStore]) -> list[str]:
    """The tests of the contract that fail; of those that need nothing but a store or a story."""
    contract, found = StoreContract(), []
    for name, test in inspect.getmembers(contract, inspect.ismethod):
        needs = [*inspect.signature(test).parameters]
        if not name.startswith("test_") or needs not in (["story"], ["store"]):
            continue
        story = Story(kind())
        if needs == ["story"]:
            story.register(now=T - HOUR)
        try:
            test(story if needs == ["story"] else story.store)
        except Exception:
            found.append(name.removeprefix("test_"))
    return found


def test_the_model_keeps_all_promises():
    assert [] == broken_by(MemoryStore)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (LetsTwoWin, "a_claim_is_won_by_one"),
        (LosesNoLease, "a_lease_of_an_ended_run_is_lost_to_its_state"),
        (EndsForAnyone, "a_finish_whose_answer_was_lost_is_true_again"),
        (ForgetsPauses, "a_job_is_paused_with_reason_and_by_whom"),
    ],
)
def test_a_store_that_breaks_a_promise_fails(kind, broken):
    assert broken in broken_by(kind)


def test_who_names_no_store_is_told():
    make_store = inspect.unwrap(StoreContract.make_store)
    with pytest.raises(TestingError, match="^StoreContract has no store: give it a fixture make_store that"):
        getattr(make_store, "__wrapped__", make_store)(StoreContract())


# How a store is found ---------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution that names these entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, **points: str) -> None:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{scheme.replace('_', '+')} = {value}\n" for scheme, value in points.items())
        (folder / "entry_points.txt").write_text(f"[anarchon_celery.stores]\n{lines}")

    return install


def test_an_installed_store_is_opened_by_its_scheme(installed, tmp_path):
    installed("anarchon-shelf", shelf="tests.shelf:open_store", shelf_file="tests.shelf:open_store")
    for scheme in ("shelf", "shelf+file", "shelf+other"):
        store = open_store(f"{scheme}://{tmp_path}/jobs", prefix="p")
        assert (shelf.ShelfStore, tmp_path / "jobs-p") == (type(store), store.path)
    app = Celery(set_as_current=False, changes={"anarchon_store": f"shelf://{tmp_path}/jobs"})
    story = Story(Config.of(app).open_store())
    story.register(now=T - HOUR)
    assert story.claim().won
    assert iso(T) in str(story.run().key)


def test_an_installed_store_replaces_none_that_is_built_in(installed, tmp_path):
    installed("anarchon-shelf", memory="tests.shelf:open_store")
    assert MemoryStore is type(open_store("memory://here"))


@pytest.mark.parametrize(
    ("points", "line"),
    [
        ({"nowhere": "tests.nowhere:open_store"}, "tests.nowhere:open_store: ModuleNotFoundError: "),
        ({"nowhere": "tests.shelf:nothing"}, "'nowhere', tests.shelf:nothing: AttributeError: "),
        ({"nowhere": "tests.shelf:no_store"}, "tests.shelf:no_store: it returned str, a Store is right"),
        ({}, "no store for 'nowhere': known are memory, sqlite, "),
        ({"shelf": "tests.shelf:open_store"}, "memory, .*, sentinel, shelf$"),
    ],
)
def test_what_is_wrong_with_an_installed_store_is_told_in_one_line(installed, points, line):
    installed("anarchon-shelf", **points)
    with pytest.raises(StoreUnusable, match=line) as told:
        open_store("nowhere://here")
    assert "\n" not in str(told.value)


def test_two_stores_of_one_scheme_are_refused(installed):
    installed("anarchon-shelf", shelf="tests.shelf:open_store")
    installed("another-shelf", shelf="tests.shelf:no_store")
    line = "two stores for 'shelf', tests.shelf:no_store and tests.shelf:open_store: uninstall one"
    with pytest.raises(StoreUnusable, match=f"^{re.escape(line)}$"):
        open_store("shelf://here")


def test_the_settings_name_what_is_installed(installed):
    installed("anarchon-shelf", shelf="tests.shelf:open_store")
    app = Celery(set_as_current=False, changes={"anarchon_store": "shelv://here"})
    with pytest.raises(SettingError, match=r"sentinel://, shelf://; did you mean shelf://\?$"):
        Config.of(app)
