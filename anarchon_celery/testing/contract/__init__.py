"""THE contract: what every store does, one sentence of the protocol per test, for pytest.

The stores of this package run it, each of them; a store of somebody else's does with a class of its own::

    class TestMyStore(StoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda prefix="anarchon": open_store(f"shelf://{tmp_path}/jobs", prefix=prefix)

Each test says the time of each step, in ``now``; only those about the clock let the store look at its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pkgutil import iter_modules

import pytest

from ...stores import Store
from ..clock import TestingError

# Before they are imported: so their assertions show what they compare, as in any test.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from .backfilling import Backfilling  # noqa: E402
from .cancelling import Cancelling  # noqa: E402
from .catching_up import CatchingUp  # noqa: E402
from .claiming import Claiming  # noqa: E402
from .clocks import GoingByTheClock  # noqa: E402
from .deploying import Deploying  # noqa: E402
from .ending import Ending  # noqa: E402
from .expiring import Expiring  # noqa: E402
from .holding import Renewing  # noqa: E402
from .late_starts import StartingLate  # noqa: E402
from .looking import Looking  # noqa: E402
from .overlapping import Overlapping  # noqa: E402
from .pausing import Pausing  # noqa: E402
from .pruning import Pruning  # noqa: E402
from .registering import Registering  # noqa: E402
from .requesting import Requesting  # noqa: E402
from .settling import Settling  # noqa: E402
from .starting import Starting  # noqa: E402
from .story import HOUR, Story, T  # noqa: E402
from .waking import Waking  # noqa: E402

__all__ = ["StoreContract"]


class StoreContract(
    Registering,
    Claiming,
    Expiring,
    Starting,
    Renewing,
    Ending,
    Settling,
    Overlapping,
    CatchingUp,
    Deploying,
    Pausing,
    Waking,
    StartingLate,
    Pruning,
    GoingByTheClock,
    Looking,
    Requesting,
    Backfilling,
    Cancelling,
):
    """The tests of a store: derive a class ``Test…`` from it, and say what the store is."""

    @pytest.fixture
    def make_store(self) -> Callable[..., Store]:
        """Return what opens the store, for one test: to be overridden.

        It is called several times in a test, with a prefix or without one. All that it returns in one test
        are handles on one place, which nobody used before; two prefixes are two stores there.
        """
        raise TestingError(
            f"{type(self).__name__} has no store: give it a fixture make_store that returns a function, "
            "which takes a prefix and returns a Store"
        )

    @pytest.fixture
    def wipe_store(self) -> Callable[[], None]:
        """Return what makes the place forget everything, as its server would: to be overridden."""
        pytest.skip(f"{type(self).__name__} has no fixture wipe_store")

    @pytest.fixture
    def store(self, make_store: Callable[..., Store]) -> Iterator[Store]:
        """One handle on the store."""
        opened = make_store()
        yield opened
        opened.close()

    @pytest.fixture
    def story(self, store: Store) -> Story:
        """A job that was registered an hour before its slot T; it is T now."""
        told = Story(store)
        told.register(now=T - HOUR)
        return told
