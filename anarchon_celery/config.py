"""From ``app.conf`` to one frozen :class:`Config`, checked once, typos answered.

Three steps: :func:`given` finds what somebody wrote, in whatever spelling Celery allows; a reader
per key turns it into a value, or says in one line what would be right; what belongs together is
compared last. All durations that come out are whole milliseconds.

``None`` always means "not given"; ``0`` and ``False`` are values.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from celery import Celery

from . import durations
from .errors import SettingError

#: The schemes of the stores there are; ``stores.open_store`` opens one of each.
SCHEMES = ('memory', 'sqlite', 'redis', 'rediss', 'valkey')

#: The policies there are, by key. The word behind a policy is what to use until it comes; none: it is here.
POLICIES: dict[str, dict[str, str | None]] = {
    'overlap': {'skip': None, 'allow': None, 'queue': 'skip', 'cancel': 'skip'},
    'catch_up': {'latest': None, 'none': None, 'all': 'latest'},
}

DEFAULT_STORE = 'sqlite:///anarchon.db'
REDIS_LIKE = ('redis', 'rediss', 'valkey', 'valkeys', 'sentinel')
LONGEST = 100 * 365 * 86_400_000     # beyond it sums of instants leave what Redis counts exactly


@dataclass(frozen=True, slots=True)
class Policy:
    """How the runs of one job are treated. Durations are milliseconds.

    Attributes:
        lease: How long a silent worker keeps a run.
        heartbeat: How often a working one renews it.
        start_timeout: A message not started by then is sent again.
        jitter: The longest delay before a claim.
        overlap: What happens to a slot while the run before it is active.
        catch_up: Which of the slots that came due while nobody looked are run.
        catch_up_window: A slot older than this is recorded as missed; ``None``: none is.
        max_crashes: Holders that may die on one run before it is abandoned.
        max_runtime: After it heartbeats stop; ``None``: never.
        handover: Whether a stopping worker hands its run over.
        stop_grace: How long a task may go on after its lease was lost.
        supervised: Whether workers run the job under a lease; ``None``: learned from the first that starts it.
    """

    lease: int = 30_000
    heartbeat: int = 10_000
    start_timeout: int = 300_000
    jitter: int = 100
    overlap: str = 'skip'
    catch_up: str = 'latest'
    catch_up_window: int | None = None
    max_crashes: int = 3
    max_runtime: int | None = None
    handover: bool = True
    stop_grace: int = 5_000
    supervised: bool | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one app, checked. Durations are milliseconds.

    Attributes:
        store: The URL of the store. It may hold a password: show it through :func:`redacted`.
        store_options: What the store's client or engine is given besides.
        node_name: The name somebody gave this node; see :attr:`node`.
        prefix: What keys and tables begin with.
        poll: How often an idle beat looks for runs to take over.
        claim_timeout: A claim not published by then is dispatched again.
        first_catch_up: How old the first slot of a job the store has never seen may be.
        history: How long ended runs are kept.
        log_runs: Whether each run is told in the log.
        policy: What holds for a job that says nothing else.
        cron_deadline: Celery's ``beat_cron_starting_deadline``; ``None``: not set.
        warnings: Lines for whoever starts a node.
    """

    store: str = field(repr=False)
    store_options: dict[str, Any] = field(default_factory=dict, repr=False)
    node_name: str | None = None
    prefix: str = 'anarchon'
    poll: int = 1_000
    claim_timeout: int = 10_000
    first_catch_up: int = 60_000
    history: int = 7 * 86_400_000
    log_runs: bool = True
    policy: Policy = Policy()
    cron_deadline: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """How this process is shown; asked each time, because the children of a worker have a pid of their own."""
        return self.node_name or f'{socket.gethostname()}:{os.getpid()}'

    @classmethod
    def of(cls, app: Celery) -> Config:
        """Read and check the ``anarchon_*`` settings of `app`.

        Raises:
            SettingError: One line: the setting as it was written, its value, what would be right.
        """
        found = {name: it for name, it in given(app.conf).items() if it.value is not None}
        values = {name: read(SETTINGS, name, it, found) for name, it in found.items()}
        policy = policy_from(Policy(), {name: values.pop(name) for name in DEFAULTS if name in values}, found)
        deadline = app.conf.get('beat_cron_starting_deadline')
        if deadline:                 # Celery, too, takes 0 for none
            values['cron_deadline'] = positive(Given('beat_cron_starting_deadline', deadline))
        if 'store' not in values:
            values['store'], values['warnings'] = store_of_broker(app.conf)
        return cls(policy=policy, **{('node_name' if name == 'node' else name): it for name, it in values.items()})


def policy_of(
    config: Config,
    entry: str,
    options: Mapping[str, Any],
    *,
    time_limit: float | None = None,
    is_crontab: bool = False,
) -> Policy:
    """Return the policy of one entry: what it says under ``options['anarchon']``, else the settings.

    Arguments:
        config: The settings.
        entry: The name of the entry, for messages.
        options: The entry's options, as Celery knows them.
        time_limit: The hard time limit of the entry's task, in seconds; it is the longest runtime
            where no other is set.
        is_crontab: Whether the schedule is a crontab, for which Celery's
            ``beat_cron_starting_deadline`` is the catch-up window where no other is set.

    Raises:
        SettingError: One line: entry, key, value, what would be right.
    """
    where = f'entry {entry!r}: '
    own = options.get('anarchon')
    if own is not None and not isinstance(own, Mapping):
        raise wrong(Given(f"{where}options['anarchon']", own), "a dict is right, such as {'lease': '1m'}")
    found = {str(key): Given(f'{where}{key}', value) for key, value in (own or {}).items() if value is not None}
    values = {name: read(OPTIONS, name, it, found) for name, it in found.items()}
    policy = policy_from(config.policy, values, found)
    if policy.max_runtime is None and time_limit:
        policy = replace(policy, max_runtime=positive(Given(f'{where}time_limit', time_limit)))
    if policy.catch_up_window is None and is_crontab:
        policy = replace(policy, catch_up_window=config.cron_deadline)
    return policy


def policy_from(base: Policy, values: Mapping[str, Any], found: Mapping[str, Given]) -> Policy:
    """Put `values` over `base`; a lease that comes without a heartbeat brings its third."""
    policy = replace(base, **values)
    if 'lease' in values and 'heartbeat' not in values:
        policy = replace(policy, heartbeat=max(1, policy.lease // 3))
    if policy.lease < 2 * policy.heartbeat:
        lease, beat, twice = map(durations.text, (policy.lease, policy.heartbeat, 2 * policy.heartbeat))
        raise wrong(found.get('heartbeat') or found['lease'], f'a lease shorter than two heartbeats (lease {lease}, '
                    f'heartbeat {beat}); a lease of at least {twice}, or a shorter heartbeat, is right')
    return policy


# What somebody wrote, and where


class Given(NamedTuple):
    """A value as it was given, and the name it was given under, in the words of whoever wrote it."""

    where: str
    value: Any


def given(conf: Any) -> dict[str, Given]:
    """Find all ``anarchon_*`` settings, by what follows ``anarchon_``, each as Celery would resolve it.

    Celery's own look-up cannot name keys it does not know, and misses upper case without a
    namespace; so the mappings behind it are searched, in its order.
    """
    conf.get('timezone')             # app.conf is lazy: only a look-up makes Celery read the configuration
    prefixes = '|'.join(re.escape(it) for it in {conf.prefix or '', 'CELERY_'} if it)
    ours = re.compile(rf'(?:{prefixes})?anarchon_(.*)', re.IGNORECASE)
    found: dict[str, Given] = {}
    for mapping in conf.maps:
        keys = [key for key in mapping.keys() if isinstance(key, str)]       # objects have keys(), but no iterator
        for key in sorted(keys, key=lambda it: (it.lower().startswith('anarchon'), it.isupper())):
            match = ours.fullmatch(key)
            if match and not isinstance(mapping[key], (ModuleType, FunctionType, type)):    # a module's imports
                found.setdefault(match[1].lower(), Given(key, mapping[key]))
    return found


def read(readers: Mapping[str, Reader], name: str, it: Given, found: Mapping[str, Given]) -> Any:
    """Read one value by the reader of its key; a key that has none is a typo."""
    reader = readers.get(name)
    if reader is None:
        raise unknown(readers, name, it)
    return reader(it)


def unknown(readers: Mapping[str, Reader], name: str, it: Given) -> SettingError:
    """Answer a key nobody knows with the nearest one, spelled as the writer spells."""
    head = it.where[:len(it.where) - len(name)]
    spell = str.upper if it.where.isupper() else str
    near = nearest(name.lower().removeprefix('anarchon_'), readers)
    if near:
        return wrong(it, f'no such setting; did you mean {spell((head + near).rpartition(" ")[2])}?')
    return wrong(it, f'no such setting; there are {", ".join(sorted(readers))}')


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the one of `words` that looks most like `word`, if one does."""
    return next(iter(get_close_matches(word.lower(), list(words), 1, 0.6)), None)


def wrong(it: Given, right: str) -> SettingError:
    """Say in one line what was given, and what would be right."""
    return SettingError(f'{it.where}={shown(it.value)}: {right}')
