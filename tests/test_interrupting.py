"""A body that does not look is interrupted: in the main thread, in a thread, in a greenlet."""

import importlib.util
import signal
import subprocess
import sys
import threading
import time

import pytest

from anarchon_celery import interrupting
from anarchon_celery.interrupting import InMainThread, InThread
from tests.processes import wait_until


class Told(Exception):
    pass


def later(body, reason=Told):
    """Interrupt a body from another thread, once it is entered; return the thread, and its answer."""
    answers = []

    def wait_and_interrupt():
        wait_until(lambda: body._in_body)
        answers.append(body.interrupt(reason))

    thread = threading.Thread(target=wait_and_interrupt)
    thread.start()
    return thread, answers


def busy():
    until = time.monotonic() + 20
    while time.monotonic() < until:
        pass


def in_thread(what):
    """Run it in a thread; return what it raised."""
    raised = []

    def run():
        try:
            what()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return raised


@pytest.mark.parametrize('blocks', [busy, lambda: time.sleep(20), lambda: threading.Event().wait(20)])
def test_in_the_main_thread_it_comes_at_once_whatever_the_body_does(blocks):
    body = interrupting.body()
    assert isinstance(body, InMainThread)
    thread, answers = later(body)
    began = time.monotonic()
    with pytest.raises(Told), body:
        blocks()
    thread.join()
    assert [True] == answers
    assert time.monotonic() - began < 15


def test_in_a_thread_it_comes_when_python_goes_on():
    def run():
        with interrupting.body() as body:
            assert isinstance(body, InThread)
            later(body)
            busy()

    assert [Told] == [type(error) for error in in_thread(run)]


def test_in_a_thread_it_waits_for_the_call_it_is_in_and_no_longer():
    def run():
        with interrupting.body() as body:
            later(body)
            time.sleep(1)
            busy()

    assert [Told] == [type(error) for error in in_thread(run)]


@pytest.mark.parametrize('where', [lambda run: run(), in_thread], ids=['main', 'thread'])
def test_nothing_comes_after_the_body(where):
    reached = []

    def run():
        with interrupting.body() as body:
            pass
        reached.append(body.interrupt(Told))
        for _ in range(100_000):
            pass

    where(run)
    assert [False] == reached


def work_for(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


@pytest.mark.parametrize('where', [lambda run: run(), in_thread], ids=['main', 'thread'])
def test_many_bodies_that_end_as_they_are_interrupted_let_nothing_through(where):
    """Either the body is interrupted, or nothing happens: what comes after it never is."""
    outcomes = {'inside': 0, 'not at all': 0}

    def interrupts(body, over):
        while not over.is_set() and not body.interrupt(Told):
            time.sleep(0)

    def run():
        for n in range(200):
            body, over = interrupting.body(), threading.Event()
            thread = threading.Thread(target=interrupts, args=[body, over])
            thread.start()
            try:
                with body:
                    work_for(n * 2e-5)  # a call, as a body is: Python 3.13 lets out of a loop right here
            except Told:
                outcomes['inside'] += 1
            else:
                outcomes['not at all'] += 1
            over.set()
            thread.join()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        assert not where(run)
    finally:
        sys.setswitchinterval(before)
    assert 200 == sum(outcomes.values())
    assert all(outcomes.values()), outcomes


TRACED = '''if True:
    import threading
    from anarchon_celery import interrupting
    def run():
        for _ in range(2):
            with interrupting.body():
                pass
        print('on it goes', flush=True)
    threading.settrace(lambda *_: None)
    threading.Thread(target=run).start()
'''


def test_a_traced_thread_goes_on_after_the_body():
    """As under a debugger, a profiler or coverage: CPython 3.11 stands still where one is taken back."""
    done = subprocess.run([sys.executable, '-c', TRACED], capture_output=True, text=True, timeout=15)
    assert 'on it goes\n' == done.stdout, done.stderr


def test_a_soft_time_limit_still_comes():
    """billiard tells of it by the same signal, to a handler that was there before."""
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append('soft'))
    try:
        with interrupting.body():
            signal.raise_signal(signal.SIGUSR1)
        assert ['soft'] == seen
        signal.raise_signal(signal.SIGUSR1)
        assert ['soft', 'soft'] == seen
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handler_before_is_back_after_the_body():
    before = signal.getsignal(signal.SIGUSR1)
    with interrupting.body():
        assert before != signal.getsignal(signal.SIGUSR1)
    assert before == signal.getsignal(signal.SIGUSR1)


GREEN = '''if True:
    import sys, time
    {patch}
    from anarchon_celery import interrupting, native
    class Told(Exception): pass
    def run():
        with interrupting.body() as body:
            native.start_thread(lambda: (native.sleep(0.3), body.interrupt(Told)), 'other')
            time.sleep(20)
    try:
        {spawn}
    except Told:
        print(native.green(), 'interrupted')
'''


@pytest.mark.parametrize(
    ('green', 'patch', 'spawn'),
    [
        ('gevent', 'from gevent import monkey; monkey.patch_all(); import gevent', 'gevent.spawn(run).get()'),
        ('eventlet', 'import eventlet; eventlet.monkey_patch()', 'eventlet.spawn(run).wait()'),
    ],
)
def test_a_greenlet_that_sleeps_is_interrupted_from_a_native_thread(green, patch, spawn):
    if importlib.util.find_spec(green) is None:
        pytest.skip(f'{green} is not installed')
    code = GREEN.format(patch=patch, spawn=spawn)
    done = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, timeout=15
    )  # fmt: skip
    assert f'{green} interrupted\n' == done.stdout, done.stderr
