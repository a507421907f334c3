"""Turned comparisons that nothing tells from the rule, each with the reason."""

from __future__ import annotations

SAME: dict[str, str] = {
    'transitions._register: job.paused is not None and (known is None or known.paused is None)': (
        'of a job that is not paused nothing is held back, and of one that was paused before all is already'
    ),
}
