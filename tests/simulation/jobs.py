"""What runs: one schedule, known to all nodes, and tasks that do little but take their time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from celery import Celery

from anarchon_celery import Task, every

#: By job: how often, for how long its bodies go on (s), and its policy.
JOBS: dict[str, tuple[str, tuple[float, float], dict[str, Any]]] = {
    'skip': ('4m', (5, 90), {'overlap': 'skip'}),
    'queue': ('8m', (20, 600), {'overlap': 'queue'}),
    'cancel': ('10m', (30, 800), {'overlap': 'cancel', 'max_crashes': 1}),
    'allow': ('8m', (10, 600), {'overlap': 'allow', 'catch_up': 'all'}),
    'all': ('5m', (1, 20), {'catch_up': 'all', 'lease': '1m'}),
    'none': ('6m', (1, 20), {'catch_up': 'none', 'max_crashes': 2}),
    'retry': ('10m', (2, 30), {'overlap': 'queue', 'lease': '20s'}),
    'spread': ('5m', (1, 5), {'jitter': '10m'}),
    'plain': ('10m', (1, 60), {}),
}

#: How long each slot's gap is (ms).
GAPS = {name: int(often[:-1]) * 60_000 for name, (often, _, _) in JOBS.items()}

SETTINGS = {
    'anarchon_store': 'memory://simulation',
    'anarchon_start_timeout': '1m',
    'anarchon_first_catch_up': 0,
    'task_default_queue': 'work',
    'task_ignore_result': True,
    'timezone': 'UTC',
    'result_expires': None,
}


#: What the bodies of tasks do; set by the cluster that is at play.
at_work: list[Callable[[Any], object]] = []


@cache
def app_of(node: str) -> Celery:
    """The app as a node has it: made once, since it keeps nothing of a seed."""
    app = Celery(node, broker='memory://', set_as_current=False)
    schedule = {
        name: {
            'task': f'sim.{name}', 'schedule': every(often),
            'options': {'anarchon': policy},
        }
        for name, (often, _, policy) in JOBS.items()
    }  # fmt: skip
    app.conf.update({**SETTINGS, 'anarchon_node': node, 'beat_schedule': schedule})
    for name in JOBS:
        kind = {} if name == 'plain' else {'base': Task}
        app.task(_body, name=f'sim.{name}', bind=True, shared=False, max_retries=None, **kind)
    app.finalize()
    return app


def _body(self: Any) -> Any:
    return at_work[-1](self)
