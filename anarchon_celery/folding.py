"""How history stays small: skips that follow each other become one row. Pure, see :mod:`.transitions`.

The row of the oldest one stays and stands for all: ``until`` is the newest slot, ``count`` how many they
are, and it ended when the last of them did. A run of any other state between two of them keeps them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from .floors import decide
from .ledger import Ledger
from .protocol import COMEBACK_AFTER, Job, RunKey

#: What was skipped less long ago is left as it is: for calls that are repeated, and for people who look.
FOLD_AFTER = 600_000


class Row(Protocol):
    """What is looked at of a scheduled run: one of a ledger, or of a table."""

    @property
    def job(self) -> str: ...  # noqa: D102
    @property
    def slot(self) -> int: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def reason(self) -> str | None: ...  # noqa: D102
    @property
    def finished_at(self) -> int | None: ...  # noqa: D102
    @property
    def until(self) -> int | None: ...  # noqa: D102


def chains(rows: Iterable[Row], now: int) -> Iterator[list[Row]]:
    """Yield skips that follow each other; ``rows`` are scheduled runs in the order of their keys."""
    chain: list[Row] = []
    for row in rows:
        is_old = _is_old_skip(row, now)
        if not (is_old and chain and (row.job, row.reason) == (chain[0].job, chain[0].reason)):
            if len(chain) > 1:
                yield chain
            chain = []
        if is_old:
            chain.append(row)
    if len(chain) > 1:
        yield chain


def foldable(chain: Sequence[Row], job: Job | None, now: int, most: int) -> list[RunKey]:
    """Return the runs of a chain that become one, ``most`` of which go; none or two at least."""
    if job is None:
        return []
    bound = _decided_by_all(job, now)
    keys = [RunKey(row.job, row.slot) for row in chain if _end(row) <= bound][: most + 1]
    return keys if len(keys) > 1 else []


def fold(ledger: Ledger, now: int, keys: Sequence[RunKey]) -> list[RunKey]:
    """Make one row of a chain, as far as it is still one; return those that went into it."""
    gone: list[RunKey] = []
    for chain in chains([ledger.runs[key] for key in keys if key in ledger.runs], now):
        if folded := foldable(chain, ledger.jobs.get(chain[0].job), now, len(chain)):
            _fold(ledger, folded)
            gone += folded[1:]
    return gone


def _fold(ledger: Ledger, keys: Sequence[RunKey]) -> None:
    """Let the first stand for all; no floor stays below what is gone, so that nothing is claimed anew."""
    runs = [ledger.runs[key] for key in keys]
    newest = max(map(_end, runs))
    for key in keys[1:]:
        ledger.drop_run(key)
    decide(ledger, ledger.jobs[runs[0].job], newest)
    ledger.put_run(
        replace(
            runs[0], until=newest, count=sum(run.count for run in runs),
            finished_at=max(run.finished_at or 0 for run in runs),
        )
    )  # fmt: skip


def _is_old_skip(row: Row, now: int) -> bool:
    # Of a table that somebody edited the cells may be anything.
    return row.state == "skipped" and type(row.finished_at) is int and row.finished_at <= now - FOLD_AFTER


def _end(row: Row) -> int:
    return row.slot if row.until is None else row.until


def _decided_by_all(job: Job, now: int) -> int:
    """Up to where each schedule is decided that a node may still have: no floor of those is raised.

    Else nodes with one of two schedules that were away for minutes would lose what they have to catch up.
    """
    had = [known for known in job.hashes if now - known.seen <= COMEBACK_AFTER]
    return min((max(known.since, known.floor or 0) for known in had), default=now)
