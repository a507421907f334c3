"""In each process of the cluster: every verb and its answer is written down, and one of them is struck.

The tests say in a file who is to be hit. Whoever comes there first makes a file that says so, and is hit: it
kills or stops itself, raises, or loses the answer (before a call: the question).
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from billiard.process import current_process
from celery.app.task import Task as CeleryTask
from sqlalchemy import Engine, event

from anarchon_celery import scheduler
from anarchon_celery.dispatch import BrokerDown, Publisher
from anarchon_celery.errors import StoreUnreachable
from anarchon_celery.lease import current_lease
from anarchon_celery.stores.redis import RedisStore
from anarchon_celery.stores.sql import SqlStore
from tests.crash_points import answers

FOLDER = Path(os.environ['CRASH_POINTS'])
ORDERS, TOLD = FOLDER / 'orders', os.environ['CLUSTER_HISTORY']

Keys = list[tuple[str, int]]

#: What this thread is in the midst of.
_doing = threading.local()

#: What is lost where it is no store that does not answer.
LOST = {'publish': TimeoutError, 'resend': TimeoutError, 'write': ConnectionError}


def role() -> str:
    """What this process is; a child is forked, so it is asked anew each time."""
    if 'beat' in sys.argv:
        return 'beat'
    return 'parent' if current_process().name == 'MainProcess' else 'child'


def tell(**line: Any) -> None:
    """Append one line; O_APPEND makes a short write one piece."""
    line |= {'role': role(), 'pid': os.getpid(), 'node': os.getpgrp()}
    with open(TOLD, 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\n')


def around(verb: str, keys: Keys, call: Callable[[], Any], of: Callable[[Any], Any] = bool) -> Any:
    """Do it, and write down when, and what ``of`` the answer counts; be struck before or after it.

    Within it is just before a transaction is committed. After it only somebody is struck who got something:
    a claim that was won, a run that was started.
    """
    _strike(verb, 'before', keys)
    begun = time.time()
    if verb == 'start':  # who dies meanwhile may have been given it
        tell(verb='asks', begun=begun, done=begun, keys=keys, answer=True)
    _doing.verb, _doing.keys = verb, keys
    try:
        answer = call()
    finally:
        _doing.verb = None
    counts = of(answer)
    tell(verb=verb, begun=begun, done=time.time(), keys=keys, answer=counts)
    if counts:
        _strike(verb, 'after', keys)
    return answer


def _strike(verb: str, side: str, keys: Keys) -> None:
    """Be hit here, if it is so ordered and nobody was."""
    try:
        orders = json.loads(ORDERS.read_text())
    except FileNotFoundError:
        return
    jobs = {job for job, _ in keys}
    for number, it in enumerate(orders['strikes']):
        struck = FOLDER / f'struck-{orders["case"]}-{number}'
        if struck.exists():
            continue
        ours = (it['role'], it['verb'], it['side']) == (role(), verb, side)
        if ours and (it['job'] is None or it['job'] in jobs) and _is_first(struck, keys):
            _be_hit(it['fault'], verb)
        return  # one after the other


def _is_first(struck: Path, keys: Keys) -> bool:
    said = {'pid': os.getpid(), 'node': os.getpgrp(), 'role': role(), 'at': time.time(), 'keys': keys}
    mine = struck.with_name(f'{struck.name}.{os.getpid()}')
    mine.write_text(json.dumps(said))
    try:
        os.link(mine, struck)  # it is there as a whole, or not
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def _be_hit(fault: str, verb: str) -> None:
    what, _, whom = fault.partition(' ')
    if whom == 'parent':
        os.kill(os.getppid(), signal.SIGSTOP)
    elif what in ('kill', 'stop'):
        number = signal.SIGKILL if what == 'kill' else signal.SIGSTOP
        os.killpg(os.getpgrp(), number) if whom else os.kill(os.getpid(), number)
    elif what == 'sigterm':
        os.kill(os.getppid(), signal.SIGTERM)
    elif what == 'error':
        raise RuntimeError('on purpose')
    elif what == 'down':
        raise BrokerDown('on purpose')
    else:
        raise LOST.get(verb, StoreUnreachable)('the answer was lost, on purpose')


# where --------------------------------------------------------------------------------------------


def install() -> None:
    """Be around all verbs of the stores, the publication of a run and of a retry."""
    for store in (RedisStore, SqlStore):
        for verb in answers.VERBS:
            _wrap(store, verb, verb, *answers.VERBS[verb])
    _wrap(Publisher, 'publish', 'publish', answers.of_publication, answers.always)
    _wrap(CeleryTask, 'apply_async', 'resend', lambda *_, **__: _own_run(), answers.always)
    event.listen(Engine, 'commit', _within)
    faulthandler.register(signal.SIGUSR2)  # for whoever wants to know where it stands
    scheduler.PRUNE_EVERY = 2_000


def _wrap(owner: type, name: str, verb: str, keys: Callable[..., Any], of: Callable[..., Any]) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            return plain(self, *args, **kwargs)

        return around(verb, keys(*args, **kwargs), call, lambda answer: of(answer, *args, **kwargs))

    setattr(owner, name, wrapped)


def _within(_connection: Any) -> None:
    """A transaction is about to be committed."""
    if getattr(_doing, 'verb', None) is not None:
        _strike(_doing.verb, 'within', _doing.keys)


def _own_run() -> Keys:
    """The run whose task sends: only a retry of its own is sent from within a body here."""
    key = getattr(current_lease(), 'key', None)
    return [] if key is None else [(key.job, key.slot)]
