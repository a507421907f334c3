"""All outcomes in a few lines: by fault, and in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from tests.crash_points.outcome import Outcome
from tests.crash_points.points import ALL_FAULTS


def summary(outcomes: Sequence[Outcome], took: float) -> Iterator[str]:
    """Say when what was hit began again, and when all was at rest: the median, and the longest."""
    yield f'{"fault":<12} cases  wrong  attempts  {"begun again (s)":>16} {"at rest (s)":>14}'
    for fault in ALL_FAULTS:
        some = [one for one in outcomes if one.case.fault == fault]
        if some:
            attempts = max((one.attempts or 0 for one in some), default=0)
            yield (
                f'{fault:<12} {len(some):>5} {sum(bool(one.wrong) for one in some):>6} {attempts:>9}  '
                f'{_span([one.again for one in some]):>16} {_span([one.rest for one in some]):>14}'
            )
    wrong, slots = sum(bool(one.wrong) for one in outcomes), sum(one.slots for one in outcomes)
    yield (
        f'{len(outcomes)} cases, {slots} slots meanwhile, {wrong} with violations, {took:.0f} s; '
        f'stale writes where nothing checks the fence: {sum(one.stale for one in outcomes)}'
    )


def _span(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f'{median(known):.2f}, {max(known):.2f}' if known else '-'
