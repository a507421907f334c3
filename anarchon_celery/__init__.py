"""Celery beat without a single point of failure, and without a leader.

::

    celery -A proj beat -S anarchon_celery.Scheduler        # on every node

What is named here, in :mod:`anarchon_celery.fencing` and in :mod:`anarchon_celery.signals`, is what users may
rely on; nothing else is promised.
"""

from importlib.metadata import version

from . import metrics, unsupervised  # noqa: F401 (they listen)
from .errors import (
    AnarchonError,
    HeaderError,
    ScheduleError,
    SettingError,
    StaleFence,
    StoreError,
    StoreUnreachable,
    StoreUnusable,
)
from .lease import HandedOver, Lease, LeaseLost, current_lease
from .methods import register
from .scheduler import Scheduler
from .schedules import cron, every, once
from .task import Task

__version__ = version("anarchon-celery")

__all__ = [
    "AnarchonError",
    "HandedOver",
    "HeaderError",
    "Lease",
    "LeaseLost",
    "ScheduleError",
    "Scheduler",
    "SettingError",
    "StaleFence",
    "StoreError",
    "StoreUnreachable",
    "StoreUnusable",
    "Task",
    "cron",
    "current_lease",
    "every",
    "once",
    "register",
]
