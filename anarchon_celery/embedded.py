"""An embedded beat (``worker -B``) goes with its worker, also where that was killed and told it nothing.

Celery ends it on every stop of the worker. A SIGKILL leaves it behind, and its system gives it another
parent: by that it knows. A beat that was started by hand does not look, since its shell may go.
"""

from __future__ import annotations

import os
from typing import Any

from celery.signals import beat_embedded_init

#: The worker's parent, in the process of its embedded beat.
_worker: int | None = None


@beat_embedded_init.connect
def _remember(**_: Any) -> None:
    """Sent in the beat's own process, before its first look."""
    global _worker
    _worker = os.getppid()


def worker_that_is_gone() -> int | None:
    """Return the process id of the worker whose beat this is, if it is gone."""
    return _worker if _worker is not None and os.getppid() != _worker else None
