"""The cluster's app, and a receiver of all signals that writes down who called it, and raises."""

import json
import os
import threading

from anarchon_celery import signals
from tests.cluster.app import HISTORY, app


@app.task
def failing():
    raise ValueError('on purpose')


def heard(sender, event, job, slot, attempt, node, **_):
    line = {
        'event': 'heard', 'signal': event.name, 'sender': sender, 'job': job,
        'slot': slot and slot.isoformat(), 'attempt': attempt, 'node': node, 'pid': os.getpid(),
        'main': threading.current_thread() is threading.main_thread(),
    }  # fmt: skip
    with open(HISTORY, 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\n')
    raise RuntimeError('a receiver that raises')


for signal in signals.ALL.values():
    signal.connect(heard)
