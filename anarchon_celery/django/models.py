"""What the admin knows jobs, runs and nodes as: their names and permissions, without tables.

A row is made for each thing that is shown. Nothing asks a database for one: who does, as ``dumpdata`` does
of all models there are, finds none.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from .. import protocol
from ..desk import JobView
from ..slots import from_iso, iso


class Nothing(models.Manager):  # type: ignore[misc]
    """Finds nothing: there is no table."""

    def get_queryset(self) -> Any:
        """Return an empty queryset."""
        return super().get_queryset().none()


class _OfTheStore:
    """What the models have in common."""

    managed = False
    default_permissions: tuple[str, ...] = ("view", "change")
    base_manager_name = "objects"


class Job(models.Model):  # type: ignore[misc]
    """A job; who may change it may trigger, pause and resume it."""

    name = models.CharField(primary_key=True, max_length=255)
    objects = Nothing()

    view: JobView
    active: dict[str, int]  #: how many runs are in each of the states that go on
    newest: protocol.Run | None  #: its newest run; of one that is not shown it is not looked for

    class Meta(_OfTheStore):
        """Its table would be called so."""

        db_table = "anarchon_admin_job"

    def __str__(self) -> str:
        return str(self.name)

    @classmethod
    def of(cls, view: JobView, active: dict[str, int]) -> Job:
        """Return the row of a job."""
        row = cls(name=view.name)
        row.view, row.active, row.newest = view, active, None
        return row


class Run(models.Model):  # type: ignore[misc]
    """A run; who may change it may cancel it."""

    name = models.CharField(primary_key=True, max_length=400)
    objects = Nothing()

    record: protocol.Run

    class Meta(_OfTheStore):
        """Its table would be called so."""

        db_table = "anarchon_admin_run"

    def __str__(self) -> str:
        return str(self.record.key)

    @classmethod
    def of(cls, record: protocol.Run) -> Run:
        """Return the row of a run."""
        row = cls(name=f"{record.kind} {iso(record.slot)} {record.job}")
        row.record = record
        return row


def key_of(name: str) -> protocol.RunKey | None:
    """Return the key of the run that a row is named after, if it is the name of one."""
    kind, _, rest = name.partition(" ")
    slot, _, job = rest.partition(" ")
    if not may_be_a_name(job):
        return None
    try:
        return protocol.RunKey(job, from_iso(slot), kind)
    except ValueError:
        return None


def may_be_a_name(job: str) -> bool:
    """Whether a job may be called so; a database that is asked for a text with a NUL has no answer."""
    return "\0" not in job


class Node(models.Model):  # type: ignore[misc]
    """A beat or worker process."""

    id = models.CharField(primary_key=True, max_length=64)
    objects = Nothing()

    record: protocol.Node
    alive: bool
    odd: bool  #: whether it is a beat with another schedule than most

    class Meta(_OfTheStore):
        """Its table would be called so."""

        db_table = "anarchon_admin_node"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.record.name

    @classmethod
    def of(cls, record: protocol.Node, *, alive: bool, odd: bool) -> Node:
        """Return the row of a node."""
        row = cls(id=record.id)
        row.record, row.alive, row.odd = record, alive, odd
        return row
