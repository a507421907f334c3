"""docs/testing.md, held to its word: each of its tests runs, and it names all there is."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest
from celery import _state

from anarchon_celery import testing
from anarchon_celery.stores.installed import GROUP
from anarchon_celery.testing import Attempt, PlayedRun, Stage, StoreContract
from anarchon_celery.testing.contract.story import HOUR, Story, T

PAGE = (Path(__file__).parents[1] / "docs" / "testing.md").read_text()
APP, FIRES, LEASED, STAGE, STORE, CONTRACT = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(*blocks: str, **names: object) -> dict[str, object]:
    module = types.ModuleType("proj.tasks")
    vars(module).update(names)
    for block in blocks:
        exec(compile(block, "docs/testing.md", "exec"), vars(module))
    return vars(module)


@pytest.fixture(scope="module")
def project():
    """The app of the page; no other app in this process has its tasks."""
    before = set(_state._on_app_finalizers)
    yield run(APP.replace("Celery('proj', ", "Celery('proj', set_as_current=False, "))
    _state._on_app_finalizers &= before


@pytest.mark.parametrize(
    ("block", "name"),
    [(block, name) for block in (FIRES, LEASED, STAGE) for name in re.findall(r"def (test_\w+)", block)],
)
def test_a_test_of_the_page(block, name, project, request):
    test = run(block, **project)[name]
    test(*map(request.getfixturevalue, inspect.signature(test).parameters))


def test_the_store_of_the_page_is_one(tmp_path):
    contract = run(STORE, CONTRACT)["TestShelf"]
    assert issubclass(contract, StoreContract)
    make = contract.make_store.__wrapped__(contract(), tmp_path)
    one, another, elsewhere = (Story(make(*prefix)) for prefix in ((), (), ("other",)))
    one.register(now=T - HOUR)
    assert another.claim().won
    assert ("claimed", []) == (one.run().state, elsewhere.store.runs())


def test_the_entry_points_of_the_page():
    (group, scheme, value) = re.search(r'entry-points."([\w.]+)"\]\n(\w+) = "(\S+)"', PAGE).groups()
    assert (GROUP, "shelf", "anarchon_shelf:open_store") == (group, scheme, value)
    assert f"def {value.partition(':')[2]}(" in STORE


def test_all_that_there_is_is_on_the_page():
    of_stage = {name for name in dir(Stage) if not name.startswith("_")} - {"close"}
    fields = {*PlayedRun.__slots__, *Attempt.__slots__}
    there = sorted({*testing.__all__} | of_stage | fields)
    assert [] == [name for name in there if not re.search(rf"\b{name}\b", PAGE)]
