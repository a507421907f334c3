"""The names of jobs, for a shell that completes them: of the app's entries, and of the store if it answers.

A shell asks click at each TAB (``_CELERY_COMPLETE``), which calls no command: so the project is loaded here.
What goes wrong with it is no affair of somebody who is about to type: then there are no names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, redirect_stdout, suppress
from io import StringIO

import click
from celery.app.utils import find_app

from .config import Config
from .desk import Desk
from .errors import StoreError
from .stores.budget import at_most

#: How long a store is waited for (seconds): somebody sits there.
WITHIN = 1.0


def job_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names that begin so."""
    names: set[str] = set()
    with redirect_stdout(StringIO()), suppress(Exception):  # a project may print, and may fail
        given = context.find_root().params.get("app")
        app = find_app(given) if isinstance(given, str) else given
        with closing(Desk(app, Config.of(app))) as desk:
            names.update(_names(desk))
    return sorted(name for name in names if name.startswith(incomplete))


def _names(desk: Desk) -> Iterator[str]:
    yield from desk.jobs
    with suppress(StoreError, click.ClickException), at_most(WITHIN):
        yield from (job.name for job in desk.store.jobs())


job_argument = click.argument("name", metavar="JOB", shell_complete=job_names)
