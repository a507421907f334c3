"""The app of peers' beats in :mod:`benchmarks.failover`: settings come from the environment."""

from __future__ import annotations

import json
import os

from celery import Celery

app = Celery("bench", set_as_current=True)
app.conf.update(json.loads(os.environ["BENCH_CONF"]))


@app.task(name="bench.task")
def nothing() -> None:
    """Do nothing."""
