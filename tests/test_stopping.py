"""A beat that is told to stop more than once: by people who press Ctrl-C twice, or by a service manager."""

import signal
from contextlib import closing

import pytest

from anarchon_celery.stores import open_store
from tests import projects
from tests.processes import wait_until


def nodes_of(url):
    with closing(open_store(url)) as store:
        return store.nodes()


#: More signals where a second SystemExit would do harm, and where the interpreter ends.
AGAIN = """
import signal

from anarchon_celery.dispatcher import Dispatcher
from anarchon_celery.stores.transactions import TransactionalStore

def again():
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    print("told again", flush=True)

def meddled(verb):
    def do(*asked, **how):
        again()
        answer = verb(*asked, **how)
        again()
        return answer
    return do

Dispatcher.close = meddled(Dispatcher.close)
TransactionalStore.close = meddled(TransactionalStore.close)

class AtTheEnd:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGTERM):
        kill(me, number)

if "beat" in sys.argv:  # and not one in a worker, which ends otherwise
    sys.at_the_end = AtTheEnd()
"""

#: As in test_scheduler.py: what is interrupted swallows the SystemExit.
SWALLOWS = """
import signal
from celery.signals import before_task_publish

@before_task_publish.connect(weak=False)
def stop(**_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    except BaseException as lost:
        print(f"swallowed {lost!r}", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_tells_a_beat_twice_disturbs_nothing(tmp_path, processes, redis_server, number):
    store = f"sqlite:///{tmp_path}/store.db"
    projects.write(tmp_path, broker=redis_server.url(1), store=store, before=AGAIN, body="pass")
    beat = processes.celery("-A", "proj", "beat", "-l", "info")
    beat.wait_for("job @ .*: dispatched", 30)
    beat.signal(number)
    assert 0 == beat.wait(20), beat.tail()
    assert "told again" in beat.output
    assert "Traceback" not in beat.output
    assert [] == nodes_of(store), "it has taken its leave"


#: A schedule of somebody's own, whose exit() would cost only its job; a stop comes while it is asked.
ASKED = """
import signal
from celery.schedules import schedule

class Theirs(schedule):
    def __init__(self, *args, **kwargs):
        super().__init__(1)

    def __deepcopy__(self, memo):
        return self

    def is_due(self, last):
        if {when}:
            print("is asked", flush=True)
            os.kill(os.getpid(), signal.SIGTERM)
        return super().is_due(last)
"""


@pytest.mark.parametrize("when", ["True", "os.path.exists('go')"])
def test_a_stop_while_a_schedule_is_asked_is_no_exit_of_its_own(
    tmp_path, processes, redis_url, redis_server, when
):
    """Whether its entry is only read, or what it has due is asked."""
    theirs = {"beat_schedule": {}}
    projects.write(
        tmp_path, broker=redis_server.url(1), store=redis_url, before=ASKED.format(when=when), body="pass",
        conf=theirs,
    )  # fmt: skip
    with (tmp_path / "proj.py").open("a") as more:
        more.write('app.conf.beat_schedule = {"theirs": {"task": "proj.job", "schedule": Theirs()}}\n')
    beat = processes.celery("-A", "proj", "beat", "-l", "info")
    if when != "True":
        beat.wait_for("started as", 30)
        (tmp_path / "go").touch()
    assert 0 == beat.wait(30), beat.tail()
    assert "is asked" in beat.output
    assert "stays out" not in beat.output
    assert "Traceback" not in beat.output
    assert [] == nodes_of(redis_url)


@pytest.mark.parametrize("before", [AGAIN, SWALLOWS])
def test_an_embedded_beat_stops_the_same_way(tmp_path, processes, redis_url, redis_server, before):
    projects.write(tmp_path, broker=redis_server.url(1), store=redis_url, before=before, body="pass")
    worker = processes.celery(
        "-A", "proj", "worker", "-B", "--scheduler", "anarchon", "-P", "solo", "-l", "info"
    )
    worker.wait_for("job @ .*: dispatched", 30)
    if before is AGAIN:
        worker.wait_for("job @ .*: finished", 30)
        worker.signal(signal.SIGTERM, group=True)  # as systemd does; the worker tells its beat once more
        assert 0 == worker.wait(20), worker.tail()
        assert "told again" in worker.output
    else:
        worker.wait_for("swallowed Stopped", 10)
        wait_until(lambda: {"worker"} == {node.kind for node in nodes_of(redis_url)})
        assert 0 == worker.stop(), worker.tail()
    assert [] == nodes_of(redis_url), "both have taken their leave"
