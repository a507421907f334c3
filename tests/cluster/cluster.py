"""A cluster of real beats and workers on one store and one broker, for one test."""

import json
import time
from pathlib import Path

from anarchon_celery.protocol import RunKey
from anarchon_celery.slots import from_iso
from anarchon_celery.stores import open_store
from tests.processes import Processes, wait_until

ROOT = Path(__file__).parents[2]


class Cluster:
    """Starts nodes, and reads what happened from the store and from what the tasks wrote."""

    def __init__(
        self, processes: Processes, folder: Path, schedule: dict, *, store: str, broker: dict,
        watched: str | None = None, **conf,
    ):  # fmt: skip
        # watched: where a test looks, if not by the way that its nodes take
        self.processes = processes
        self.history_file = folder / 'history'
        conf = {
            'beat_schedule': schedule,
            'result_expires': None,  # else Celery adds a job of its own at 04:00, which a clock may leap over
            'anarchon_store': store,
            'worker_hijack_root_logger': True,
            'broker_connection_retry_on_startup': True,
            **broker,
            **conf,
        }
        self.conf = conf
        self.env = {
            'CLUSTER_CONF': json.dumps(conf),
            'CLUSTER_HISTORY': str(self.history_file),
            'PYTHONPATH': str(ROOT),
        }
        self.store = open_store(watched or store)

    def beat(self, name, *arguments, **conf):
        """Start a beat; ``conf`` are settings of this one's own."""
        return self.celery(
            'tests.cluster.app', 'beat', '-S', 'anarchon_celery.Scheduler', *arguments, name=name, **conf
        )

    def worker(self, name, *arguments, concurrency=2):
        return self.celery(
            'tests.cluster.app', 'worker', '-n', f'{name}@%h', '-c', str(concurrency), *arguments, name=name
        )

    def celery(self, app, *arguments, name, env=None, **conf):
        """Start one of Celery's commands on an app; ``conf`` are settings of this process's own."""
        return self.processes.celery(
            '-A', app, *arguments, '-l', 'info', name=name,
            env={**self.env, **(env or {}), 'CLUSTER_CONF': json.dumps({**self.conf, **conf})},
        )  # fmt: skip

    def command(self, *arguments, **how):
        return self.processes.celery('-A', 'tests.cluster.app', 'anarchon', *arguments, env=self.env, **how)

    # what happened

    def runs(self, job=None):
        """All runs of a job, oldest slot first."""
        return self.store.runs(job=job, limit=100_000)[::-1]

    def run_where(self, test, deadline=15, job=None):
        """Wait until a run passes the test, and return it."""

        def look():
            return next((run for run in self.runs(job) if test(run)), None)

        return wait_until(look, deadline, why=lambda: f'no such run among {self.runs(job)[-5:]}')

    def now(self):
        """The time by which slots are due here: all is on one machine."""
        return time.time() * 1000

    def history(self, event=None):
        """What the tasks wrote, as dicts."""
        if not self.history_file.exists():
            return []
        lines = [json.loads(line) for line in self.history_file.read_text().splitlines()]
        return [line for line in lines if event in (None, line['event'])]

    def started(self):
        """How often the body of each slot began."""
        counts = {}
        for line in self.history('start'):
            key = RunKey(line['job'], slot_of(line))
            counts[key] = counts.get(key, 0) + 1
        return counts

    def close(self):
        self.store.close()


def slot_of(line):
    """The fire time of a line of the history, in milliseconds."""
    return from_iso(line['slot'])


def interval_slots(every, begin, end):
    """The fire times of an interval (seconds) in [begin, end), in milliseconds."""
    step = every * 1000
    first = -(-int(begin) // step) * step
    return range(first, int(end), step)


def file_broker(folder: Path):
    """The settings of a broker that needs no server: files in a folder."""
    for part in ('messages', 'control'):
        (folder / part).mkdir(exist_ok=True)
    return {
        'broker_url': 'filesystem://',
        'broker_transport_options': {
            'data_folder_in': str(folder / 'messages'),
            'data_folder_out': str(folder / 'messages'),
            'control_folder': str(folder / 'control'),
        },
    }
