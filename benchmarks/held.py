"""The cluster's app with one more task: it waits, and costs nothing while it does."""

from __future__ import annotations

import time
from typing import Any

from tests.cluster.app import app, wrote


@app.task(bind=True, name="benchmarks.held")
def held(self: Any, seconds: float) -> None:
    """Say that it began, and wait."""
    wrote(self.lease, "start")
    time.sleep(seconds)
