"""What a worker's parent has to tell the store: handed to its thread, and kept while the store is away.

Each is tried for as long as the lease of its run: then the deadline has decided.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from .errors import StoreError
from .events import RunUnrecorded, emit
from .headers import Order
from .patience import Patience
from .stores.clock import monotonic


@dataclass(frozen=True, slots=True)
class Due:
    """Something to be asked of the store, until a moment (monotonic seconds)."""

    order: Order
    what: str
    do: Callable[[], object]
    until: float


class Agenda:
    """Filled by any thread, done by one."""

    def __init__(self) -> None:
        """Begin with nothing to do."""
        self._due: deque[Due] = deque()
        self._patience = Patience()

    def __len__(self) -> int:
        """How much is left."""
        return len(self._due)

    def put(self, order: Order, what: str, do: Callable[[], object]) -> None:
        """Let it be done at the next look."""
        self._due.append(Due(order, what, do, monotonic() + order.lease / 1000))

    def ask(self, order: Order, what: str, do: Callable[[], object]) -> None:
        """Do it now, and where the store does not answer, later."""
        try:
            do()
        except StoreError:
            self.put(order, what, do)

    def do_all(self) -> None:
        """Do what there is; what fails is tried again until its time is over."""
        if self._patience.lasts(monotonic()):
            return
        for _ in range(len(self._due)):
            due = self._due.popleft()
            try:
                due.do()
            except StoreError as reason:
                self._patience.begin(monotonic())
                if monotonic() < due.until:
                    self._due.append(due)
                else:
                    emit(RunUnrecorded(due.order.key, due.what, str(reason)))
                return
            self._patience.end()
