"""The quick start, as one file: two jobs that any number of nodes share.

Open three terminals in this folder and start a node in each, under a name of its own::

    celery -A quick_start worker -B --scheduler anarchon_celery.Scheduler -P threads -l info -n a@%h

Each node is a beat and a worker. All beats look at the same jobs, and one of them wins each slot.
Press Ctrl-C, once, in the terminal that runs ``report``: another node starts it again within two
seconds. Or end it with ``kill -9 PID``: then another node starts it after the lease, six seconds.

It needs no server: the store is a file, ``jobs.db``, and the broker a folder, ``broker``. The nodes
meet because they run in the same folder. With ``REDIS_URL=redis://localhost:6379/0`` in their
environment they meet in Redis instead, and may run on several machines.
"""

import os
import time
from pathlib import Path

from celery import Celery

import anarchon_celery

app = Celery('quick_start', task_cls=anarchon_celery.Task)

if redis_url := os.environ.get('REDIS_URL'):
    app.conf.broker_url = redis_url  # and the store, as nothing else is said
else:
    app.conf.anarchon_store = 'sqlite:///jobs.db'
    app.conf.broker_url = 'filesystem://'
    app.conf.broker_transport_options = {
        'data_folder_in': 'broker',
        'data_folder_out': 'broker',
        'control_folder': 'broker',
        'polling_interval': 0.5,  # how often a worker looks for messages; Celery's default is 1 s
    }
    Path('broker').mkdir(exist_ok=True)

# A short lease, so that a takeover is quick to watch. The default is 30 s.
app.conf.anarchon_lease = '6s'
app.conf.anarchon_heartbeat = '1s'

app.conf.beat_schedule = {
    'sync': {'task': 'sync', 'schedule': '10s'},
    'report': {'task': 'report', 'schedule': '30s'},
}


@app.task(name='sync')
def sync():
    """A quick job, every 10 seconds."""
    time.sleep(0.2)


@app.task(name='report', bind=True)
def report(self):
    """A slow job, every 30 seconds: 20 seconds of work."""
    for _ in range(20):
        self.lease.check()  # stop cleanly when asked
        self.lease.wait(1)  # the work; a sleep that wakes up when asked to stop
