"""A project of one job for tests with real processes: written into a folder, run by ``celery -A proj``."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

TEXT = """\
import os, sys, time
from celery import Celery
import anarchon_celery

{before}
app = Celery("proj", broker={broker!r}, backend={backend!r}, task_cls=anarchon_celery.Task)
app.conf.update(
    anarchon_store={store!r}, anarchon_jitter=0, anarchon_first_catch_up=3600,
    beat_scheduler="anarchon_celery.Scheduler",
    beat_schedule={{"job": {{"task": "proj.job", "schedule": 3600, "options": {options!r}}}}},
)
app.conf.update(**{conf!r})

def until(file, seconds=60):
    print(f"waits for {{file}}", flush=True)
    for _ in range(50 * seconds):
        if os.path.exists(file):
            return
        time.sleep(0.02)

if {known}:
    @app.task(name="proj.job", bind=True, **{how!r})
    def job(self, *args, **kwargs):
{body}
"""


def write(
    folder: Path, *, broker: str, store: str, body: str, backend: str | None = None, before: str = "",
    known: str = "True", options: dict | None = None, conf: dict | None = None, how: dict | None = None,
) -> None:  # fmt: skip
    """Write ``proj.py``: a job of one slot, due now, with this body of its task, which is made ``how``.

    ``before`` is run before the app is made; ``known`` says, in words of Python's, whether there is the task.
    """
    text = TEXT.format(
        broker=broker, backend=backend or "cache+memory://", store=store, before=before, known=known,
        body=indent(body, 8 * " "), options=options or {}, conf=conf or {}, how=how or {},
    )  # fmt: skip
    (folder / "proj.py").write_text(text)
