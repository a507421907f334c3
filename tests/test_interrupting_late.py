"""An interruption that comes at the last moment hits the body, or nothing: never what follows."""

from __future__ import annotations

import subprocess
import sys

import pytest

GREENLET = '''
from gevent import monkey; monkey.patch_all()
import gevent
from anarchon_celery import interrupting

class Lost(Exception): pass

def run():
    body = interrupting.body()
    try:
        with body:
            throw = lambda: body._throw(Lost)  # what another thread lets the hub do
            gevent.get_hub().loop.run_callback(throw)
            gevent.sleep(0)  # its turn is the next one
            print("the body went on")
    except Lost:
        print("interrupted")
    gevent.sleep(0.05)

gevent.spawn(run).get()
print("and nothing after it")
'''


def test_a_greenlet_whose_turn_is_the_next_one_is_interrupted_before_it():
    pytest.importorskip('gevent')
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', GREENLET], capture_output=True, text=True)
    assert 'interrupted\nand nothing after it\n' == done.stdout, done.stderr
