"""Somebody waits for runs that are given back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...stores.waking import WakeUps
from .story import MINUTE, Story


class Waking:
    """Somebody waits for runs that are given back: of stores that can tell."""

    @pytest.fixture
    def wake_ups(self, story: Story) -> Iterator[WakeUps]:
        found = story.store.wake_ups()
        if found is None:
            pytest.skip("this store tells nobody: beats poll")
        assert found.wait(10)  # it is connected; what was before is looked at once
        assert not found.wait(0.01)
        yield found
        found.close()

    def test_who_waits_is_woken_by_a_request(self, story, wake_ups):
        story.trigger()
        assert wake_ups.wait(10)
        assert not wake_ups.wait(0.01)

    def test_who_waits_is_woken_by_a_run_that_is_given_back_and_by_no_other_step(self, story, wake_ups):
        story.begin()
        story.renew()
        assert not wake_ups.wait(0.1)
        assert story.release(token="t1")
        assert wake_ups.wait(10)

    def test_who_waits_is_woken_by_an_end_that_lets_the_next_run_go_on(self, story, wake_ups):
        story.begin()
        story.now += MINUTE
        assert "overlap" == story.claim(story.now, nonce="n2", overlap="queue").answer
        assert not wake_ups.wait(0.1)
        assert story.finish()
        assert wake_ups.wait(10)
