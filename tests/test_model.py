"""The explorer in short: small clusters, and breaks that show at once. All: ``python -m tests.model``."""

from functools import cache

import pytest

from tests.model.loading import RULES
from tests.model.mutants import by_hand
from tests.model.same import SAME
from tests.model.scenes import SCENES
from tests.model.turned import turned
from tests.model.walking import Walk

#: Walked in a second or less each.
SMALL = [
    'messages are lost', 'messages expire', 'history goes', 'the job is forgotten', 'a schedule of a chain',
    'two schedules, cancel', 'slots of two schedules are passed over', 'three slots, late, catch-up all',
    'somebody cancels', 'the store is wiped',
]  # fmt: skip

#: What has to be found, and where it shows.
BREAKS = {
    'start does not look at the state': 'messages are lost',
    'what is queued is never dispatched again': 'messages are lost',
    'what is released is never dispatched again': 'somebody cancels',
    'sent does not compare the state': 'messages are lost',
    'redispatch ignores a stop flag': 'somebody cancels',
    'a takeover is no crash': 'somebody cancels',
    'dispatches are not limited': 'messages are lost',
    'the fence does not grow': 'history goes',
    'the claim ignores overlap': 'history goes',
    'overlap is checked outside the claim: what is claimed meanwhile is not seen': 'history goes',
    'an end does not promote': 'somebody cancels',
    'a young store starts runs': 'the store is wiped',
}


@cache
def scene(name: str) -> Walk:
    """A scene, walked once for all tests."""
    return Walk(SCENES[name])


@pytest.mark.parametrize('name', SMALL)
def test_whatever_happens_no_invariant_is_broken_and_all_comes_to_rest(name):
    walked = scene(name).walked
    assert walked.wrong is None, walked
    assert walked.states > 50


@pytest.mark.parametrize('name', BREAKS)
def test_a_rule_that_is_broken_is_found(name):
    (mutant,) = [one for one in by_hand() if one.name == name]
    walked = scene(BREAKS[name]).walk_broken(mutant)
    assert walked is not None and walked.wrong, name
    assert walked.way


def test_a_rule_is_broken_for_one_walk_only():
    (mutant,) = [one for one in by_hand() if one.name == 'dispatches are not limited']
    scene('messages are lost').walk_broken(mutant)
    assert Walk(SCENES['messages are lost']).walked.wrong is None


def test_what_is_said_to_be_the_same_is_there():
    names = {mutant.name for mutant in turned()}
    assert names >= set(SAME)
    assert {name.partition('.')[0] for name in names} <= set(RULES)
