"""The small clusters that are walked. Each is about something; together they are the protocol."""

from __future__ import annotations

from .cluster import Scene


def _faults(**faults: int) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(faults.items()))


#: The small ones first.
SCENES = {
    'messages are lost': Scene(max_dispatches=2, faults=_faults(loss=3, double=1)),
    'messages expire': Scene(faults=_faults(expired=1, plain=1, double=1, late=1)),
    'history goes': Scene(slots=2, workers=2, faults=_faults(prune=2, double=1)),
    'the job is forgotten': Scene(slots=2, overlap='queue', faults=_faults(forget=1, double=1)),
    'a schedule of a chain': Scene(slots=2, beats=2, remember=True, chained=True),
    'two schedules': Scene(slots=3, beats=2, schedules=((0, 2), (1, 2)), overlap='queue'),
    'two schedules, cancel': Scene(slots=2, beats=2, schedules=((0,), (1,)), overlap='cancel'),
    'two schedules, history goes': Scene(beats=2, schedules=((0,), (0,)), faults=_faults(prune=1)),
    'slots are passed over': Scene(slots=3, beats=2, remember=True, passes=True),
    'slots of two schedules are passed over': Scene(
        slots=3, beats=2, schedules=((0, 2), (1, 2)), remember=True, passes=True
    ),
    'three slots, late, catch-up all': Scene(slots=3, catch_up='all'),
    'somebody triggers': Scene(workers=2, faults=_faults(trigger=2)),
    'somebody triggers, queue': Scene(slots=2, workers=2, overlap='queue', faults=_faults(trigger=1)),
    'somebody triggers, cancel': Scene(slots=2, overlap='cancel', faults=_faults(trigger=1)),
    'somebody triggers, allow': Scene(workers=2, overlap='allow', faults=_faults(trigger=1, backfill=1)),
    'somebody asks for a slot again': Scene(workers=2, faults=_faults(trigger=1, backfill=1)),
    'somebody cancels': Scene(slots=2, overlap='queue', faults=_faults(cancel=1, worker=1)),
    'somebody cancels a retry': Scene(faults=_faults(cancel=1, retry=1, handover=1, refused=1)),
    'two slots, skip': Scene(slots=2, beats=2, workers=2, faults=_faults(late=1)),
    'two slots, late, catch-up all': Scene(slots=2, beats=2, catch_up='all', faults=_faults(beat=1)),
    'a worker dies, another is stopped': Scene(workers=2, faults=_faults(worker=2, handover=1, late=1)),
    'two slots, allow': Scene(slots=2, workers=2, overlap='allow', faults=_faults(worker=1, double=1)),
    'a task without the base class': Scene(
        slots=2, beats=2, workers=2, supervised=False, faults=_faults(double=1, beat=1)
    ),
    'a task known to be without it': Scene(told=False, workers=2, faults=_faults(double=1, worker=1)),
    'each call twice': Scene(twice=True, faults=_faults(worker=1, handover=1, retry=1, refused=1)),
    'each call twice, overlap': Scene(slots=2, overlap='cancel', twice=True, faults=_faults(trigger=1)),
    'somebody pauses': Scene(slots=2, overlap='queue', faults=_faults(pause=1, worker=1)),
    'somebody pauses, allow': Scene(slots=2, workers=2, overlap='allow', faults=_faults(pause=1)),
    'somebody pauses and triggers': Scene(workers=2, faults=_faults(pause=1, trigger=1)),
    'a pause, and a retry': Scene(workers=2, faults=_faults(pause=1, retry=1, double=1)),
    'the broker refuses, a beat is late': Scene(beats=2, faults=_faults(refused=1, late=1, beat=1)),
    'Celery asks for a retry': Scene(
        workers=2, max_crashes=1, faults=_faults(retry=1, worker=1, double=1, late=1)
    ),
    'the store is wiped': Scene(workers=2, remember=True, faults=_faults(wipe=1, double=1, late=1)),
    'the store is wiped, two slots': Scene(
        slots=2, workers=2, remember=True, overlap='queue', faults=_faults(wipe=1)
    ),
    'the store is wiped, somebody triggers': Scene(
        workers=2, remember=True, faults=_faults(wipe=1, trigger=1)
    ),
    'the store loses its last write': Scene(workers=2, faults=_faults(rollback=1, double=1, late=1)),
    'the store loses its last write, nodes know': Scene(slots=2, remember=True, faults=_faults(rollback=1)),
    'a run, and all that may befall it': Scene(
        beats=2, workers=2, max_crashes=1, max_dispatches=2, faults=_faults(beat=1, loss=1, late=1)
    ),
    'two slots, cancel': Scene(slots=2, workers=2, overlap='cancel', faults=_faults(worker=1, double=1)),
    'two slots, queue': Scene(slots=2, workers=2, overlap='queue', faults=_faults(late=1, worker=1)),
}

#: Those with less than a thousand states.
SMALL = (
    'messages are lost', 'messages expire', 'history goes', 'the job is forgotten', 'a schedule of a chain',
    'two schedules, cancel', 'two schedules, history goes', 'slots of two schedules are passed over',
    'three slots, late, catch-up all', 'a task known to be without it',
)  # fmt: skip
