"""From ``app.conf`` to one frozen :class:`Config`, checked once, typos answered.

Three steps: :func:`given` finds what somebody wrote, in whatever spelling Celery allows; a reader
per key makes a value of it, or says in one line what would be right; what belongs together is
compared last. Every duration that comes out is a whole number of milliseconds.

``None`` always means "not given"; ``0`` and ``False`` are values.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from celery import Celery

from . import durations, measures
from .endpoints import Endpoint, endpoints
from .errors import SettingError, in_one_line
from .stores import SCHEMES, Store, open_store
from .stores.installed import schemes
from .stores.timing import timed
from .trust import LOOK_EVERY, margin

#: The policies of each kind.
POLICIES = {"overlap": ("skip", "queue", "cancel", "allow"), "catch_up": ("latest", "all", "none")}

A_STORE = f"a URL is right that begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
A_DICT = "a dict is right"
A_NODE = "a text of one line is right, such as 'host-a'"
A_PREFIX = "a text of letters, digits, '_', '.' and '-' is right"
REDIS_LIKE = ("redis", "rediss", "valkey", "valkeys", "sentinel", "unix")
OF_SENTINELS = ("master_name", "sentinel_kwargs", "min_other_sentinels")  # of broker_transport_options
SECRET = "pass|pwd|secret|token"  # in the name of what is not to be shown
# A password ends at the last @ before the query; if there is none, it may hold a ?, unless it is a port.
USER = r"(?s)(//[^:/@[]*:|^[^:/@[]*:(?!//))([^?]*@|(?!\d*([/?#]|$)).*@)"
MOST = 1_000_000  # of what is counted: databases have less room for numbers than Python
LONGEST = 36_500 * 86_400_000  # sums of instants stay far from where Redis and SQL stop counting exactly


@dataclass(frozen=True, slots=True)
class Policy:
    """How the runs of one job are treated. Durations are milliseconds."""

    lease: int = 30_000  #: how long a silent worker keeps a run
    heartbeat: int = 10_000  #: how often a working one renews it
    start_timeout: int = 300_000  #: a message not started by then is sent again
    jitter: int = 100  #: the longest delay before a claim
    overlap: str = "skip"  #: what becomes of a slot while an earlier run is active
    catch_up: str = "latest"  #: which slots are run that came due while nobody looked
    catch_up_window: int | None = None  #: a slot older than this is recorded as missed; None: none is
    max_crashes: int = 3  #: holders that may die on one run before it is abandoned
    max_runtime: int | None = None  #: after it heartbeats stop; None: never
    handover: bool = True  #: whether a stopping worker hands its run over
    stop_grace: int = 5_000  #: how long a task may go on after its lease was lost
    supervised: bool | None = None  #: whether it runs under a lease; None: the first start shows


#: So much longer than a worker's wait for messages a run that it hands over stays out of the queue (ms).
IN_FLIGHT_MARGIN = 100


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one app, checked. Durations are milliseconds."""

    store: str = field(repr=False)  #: a URL, often with a password: `redacted` shows it
    store_options: dict[str, Any] = field(default_factory=dict, repr=False)  #: for the client or engine
    node_name: str | None = None  #: how somebody named this node; see `node`
    prefix: str = "anarchon"  #: of keys and tables
    poll: int = 1_000  #: how often an idle beat looks for runs to take over
    claim_timeout: int = 10_000  #: a claim not published by then is dispatched again
    first_catch_up: int = 60_000  #: how old the first slot of a job the store never saw may be
    history: int = 7 * 86_400_000  #: how long ended runs are kept
    log_runs: bool = True  #: whether the log tells of each run
    metrics: dict[str, Endpoint] = field(default_factory=dict)  #: where each kind of node tells its metrics
    policy: Policy = Policy()  #: of a job that says nothing else
    time_limit: float | None = None  #: Celery's task_time_limit (s), of a task that has none of its own
    cron_deadline: int | None = None  #: Celery's beat_cron_starting_deadline; None: not set
    in_flight: int = 0  #: for how long a worker that stops is still sent messages, which it does not read
    warnings: tuple[str, ...] = ()  #: lines for whoever starts a node

    @property
    def node(self) -> str:
        """How this process is shown; asked anew each time, as a worker's children have their own pids."""
        return self.node_name or f"{socket.gethostname()}:{os.getpid()}"

    def open_store(self, *, at_most: float = float("inf")) -> Store:
        """Return the store that is set, not yet connected; a verb is given ``at_most`` so many seconds.

        Raises:
            StoreUnusable: One line: its URL or its options cannot be meant.
        """
        store = open_store(
            self.store, prefix=self.prefix, options=self.store_options,
            # So that there is time left to publish what was won.
            within=min(self.claim_timeout / 2000, at_most),
        )  # fmt: skip
        return timed(store, measures.store_called) if self.metrics else store

    @classmethod
    def of(cls, app: Celery) -> Config:
        """Read and check the ``anarchon_*`` settings of `app`.

        Raises:
            SettingError: One line: the setting as it was written, its value, what would be right.
        """
        found = given(app.conf)
        values = read(SETTINGS, found)
        policy = policy_from(
            Policy(), {name: values.pop(name) for name in OPTIONS.keys() & values.keys()}, found
        )
        values["node_name"] = values.pop("node", None)
        deadline = app.conf.get("beat_cron_starting_deadline")
        if deadline:  # Celery, too, takes 0 for none
            values["cron_deadline"] = positive(Given("beat_cron_starting_deadline", deadline))
        values["time_limit"] = app.conf.task_time_limit
        values["in_flight"] = in_flight_of_broker(app.conf)
        warnings = zone_of_host(app.conf)
        if "store" not in values:
            values["store"], more = store_of_broker(app.conf)
            warnings += more
            of_broker = options_of_broker(app.conf, values["store"])
            values["store_options"] = of_broker | values.get("store_options", {})
        return cls(policy=policy, warnings=warnings, **values)


def policy_of(
    config: Config, entry: str, options: Mapping[str, Any], *, time_limit: float | None, is_crontab: bool
) -> Policy:
    """Return the policy of one entry: what it says under ``options['anarchon']``, else the settings.

    Arguments:
        config: The settings.
        entry: The name of the entry, for messages.
        options: The entry's options, as Celery knows them.
        time_limit: The hard time limit of the entry's task in seconds; the max_runtime where none is set.
        is_crontab: Whether the schedule is a crontab; Celery's ``beat_cron_starting_deadline`` is then
            the catch_up_window where none is set.

    Raises:
        SettingError: One line: entry, key, value, what would be right.
    """
    within = f"entry {entry!r}: "
    own = options.get("anarchon")
    if own is not None and not isinstance(own, Mapping):
        raise wrong(Given("options['anarchon']", own, within), A_DICT)
    found = {str(key): Given(str(key), value, within) for key, value in (own or {}).items()}
    policy = policy_from(config.policy, read(OPTIONS, found), found)
    if policy.max_runtime is None and time_limit:
        policy = replace(policy, max_runtime=positive(Given("time_limit", time_limit, within)))
    if policy.catch_up_window is None and is_crontab:
        policy = replace(policy, catch_up_window=config.cron_deadline)
    return policy


def redacted(url: str) -> str:
    """Return `url` for people, ``***`` for each password. Takes any text; in doubt it hides too much."""
    urls = [re.sub(USER, r"\1***@", it) for it in re.split(r";(?=[\w+.-]+://)", str(url))]
    return ";".join(re.sub(rf"(?i)([?&][^=&]*({SECRET})[^=&]*=)[^&#]*", r"\1***", it) for it in urls)


class Given(NamedTuple):
    """A value, and the key it was given under, as whoever gave it wrote both."""

    key: str
    value: Any
    within: str = ""


def given(conf: Any) -> dict[str, Given]:
    """Find all ``anarchon_*`` settings, by what follows ``anarchon_``, each as Celery would resolve it.

    Celery's own look-up cannot name the keys it does not know, and misses upper case without a
    namespace; so the mappings behind it are searched, in its order.
    """
    conf.get("timezone")  # app.conf is lazy: it is read at the first look-up
    prefixes = "|".join(re.escape(prefix) for prefix in (conf.prefix, "CELERY_") if prefix)
    ours = re.compile(rf"(?:{prefixes})?anarchon(?:_(.*))?", re.IGNORECASE)
    found: dict[str, Given] = {}
    for mapping in conf.maps:  # dicts, and whatever Celery makes look like one: modules, objects
        matches = filter(None, map(ours.fullmatch, filter(lambda key: isinstance(key, str), mapping)))
        for match in sorted(matches, key=lambda it: (-len(it[0]), it[0].isupper())):
            key, name = match[0], match[1] or ""
            if not isinstance(mapping[key], (ModuleType, FunctionType, type)):  # what a module imports
                found.setdefault(name.lower(), Given(key, mapping[key]))
    return found


def policy_from(base: Policy, values: Mapping[str, Any], found: Mapping[str, Given]) -> Policy:
    """Put `values` over `base`; a lease that comes without a heartbeat brings its third."""
    if not values:
        return base  # which was checked
    policy = replace(base, **values)
    if "lease" in values and "heartbeat" not in values:
        policy = replace(policy, heartbeat=max(1, policy.lease // 3))
    if policy.lease < 2 * policy.heartbeat:
        lease, beat, twice = map(durations.text, (policy.lease, policy.heartbeat, 2 * policy.heartbeat))
        short = f"a lease shorter than two heartbeats (lease {lease}, heartbeat {beat})"
        it = found["heartbeat" if "heartbeat" in values else "lease"]
        raise wrong(it, f"{short}; a lease of at least {twice} is right, or a shorter heartbeat")
    if policy.lease <= policy.heartbeat + margin(policy.lease) + LOOK_EVERY:
        early, lease, beat = map(durations.text, (margin(policy.lease), policy.lease, policy.heartbeat))
        it = found["heartbeat" if "heartbeat" in values else "lease"]
        short = f"a lease of {lease} is given up {early} early: no time is left for a heartbeat every {beat}"
        raise wrong(it, f"{short}; a longer one is right, of 1s at least")
    return policy


def check_celerys(app: Celery) -> None:
    """Refuse those of Celery's settings that would be wrong for each entry.

    Raises:
        SettingError: One line.
    """
    if not isinstance(app.conf.beat_schedule, Mapping):
        given = type(app.conf.beat_schedule).__name__
        raise SettingError(f"beat_schedule is of type {given}: a dict of entries by name is right")
    try:
        app.timezone.utcoffset(datetime(2026, 1, 1))
    except Exception as reason:
        why = in_one_line(reason)
        raise SettingError(f"timezone={app.conf.timezone!r}: no such time zone ({why})") from reason


def zone_of_host(conf: Any) -> tuple[str, ...]:
    """Warn where local times are those of each host: nodes in different zones have different slots."""
    if conf.enable_utc or conf.timezone:
        return ()
    return ("timezone is not set and enable_utc is False: local times are this host's; set timezone",)


def store_of_broker(conf: Any) -> tuple[str, tuple[str, ...]]:
    """Take the broker for the store if it can be one, else a file, with a warning."""
    found = conf.broker_write_url or ()
    urls = [
        url.strip() for one in ([found] if isinstance(found, str) else found) for url in str(one).split(";")
    ]
    url = urls[0] if urls else ""
    scheme = url[: max(url.find("://"), 0)].lower()
    base, _, way = scheme.partition("+")
    if scheme in SCHEMES and base in REDIS_LIKE:
        # Of several servers the first one is the store; several sentinels or nodes are one store.
        return (";".join(urls) if base == "sentinel" or way == "cluster" else url), ()
    setting = "ANARCHON_STORE" if (conf.prefix or "").isupper() else "anarchon_store"
    unset = f"{conf.prefix or ''}{setting} is not set, and the broker"
    if base in REDIS_LIKE:  # with a file instead, each node would run everything
        raise SettingError(f"{unset} {redacted(url)!r} cannot be the store: {A_STORE}")
    file = "sqlite:///anarchon.db"
    return file, (f"{unset} is not Redis: the store is {file}, which only nodes on this machine see",)


def in_flight_of_broker(conf: Any) -> int:
    """Return for how long after a worker began to stop its broker still sends it what comes (ms).

    Of Redis a worker waits for messages (``BRPOP``) a second at a time. When it is told to stop it reads no
    more, but what comes within that second is taken from the queue, and back in it when the worker has gone.
    """
    found = conf.broker_read_url or conf.broker_url or ""
    scheme = str(found if isinstance(found, str) else found[0]).partition(":")[0].partition("+")[0]
    if scheme not in REDIS_LIKE:
        return 0
    waits = (conf.broker_transport_options or {}).get("polling_interval") or 1
    return round(1000 * float(waits)) + IN_FLIGHT_MARGIN


def options_of_broker(conf: Any, store: str) -> dict[str, Any]:
    """Return what Celery is told of a broker elsewhere than in its URL, as far as the store needs it."""
    if store.partition(":")[0].partition("+")[0] not in REDIS_LIKE:
        return {}
    transport = conf.broker_transport_options or {}
    names = OF_SENTINELS if store.startswith("sentinel:") else ()
    options = {name: transport[name] for name in names if name in transport}
    if conf.broker_use_ssl:
        options["ssl"] = True
        options |= conf.broker_use_ssl if isinstance(conf.broker_use_ssl, dict) else {}
    return options


def wrong(it: Given, right: str) -> SettingError:
    """Say in one line what was given, and what would be right."""
    value = "***" if re.search(SECRET, it.key, re.IGNORECASE) else shown(it.value)
    key = it.key if it.key.isprintable() else repr(it.key)
    return SettingError(f"{it.within}{cut(key)}={value}: {right}")


def shown(value: object) -> str:
    """Show a value in a line for people: no passwords, no line breaks, nothing long."""
    if not isinstance(value, (str, int, float, timedelta)):
        return f"<{type(value).__name__}>"
    text = repr(redacted(value)) if isinstance(value, str) else as_text(value)
    return cut(text)


def cut(text: str) -> str:
    """Return what of a text has room in a line."""
    return text if len(text) <= 100 else f"{text[:97]}..."


def as_text(value: object) -> str:
    """Return the text of any value, also of one that has none: Python writes no number of 5,000 digits."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def unknown(names: Iterable[str], name: str, it: Given) -> SettingError:
    """Answer a key that nobody knows with the nearest one, spelled as it was, or with all there are."""
    head = it.key[: len(it.key) - len(name)]
    near = did_you_mean(name, names, lambda near: head + (near.upper() if head.isupper() else near))
    there = f"; after {head.rstrip('_')}_ come " if head else "; there are "
    return wrong(it, "no such setting" + (near or there + ", ".join(sorted(names))))


def did_you_mean(word: object, words: Iterable[str], spell: Callable[[str], str] = repr) -> str:
    """Return the end of a line that asks for the nearest of `words`, or nothing."""
    near = get_close_matches(as_text(word).lower().removeprefix("anarchon_"), list(words), 1)
    return f"; did you mean {spell(near[0])}?" if near else ""


Reader = Callable[[Given], Any]  # there is one for each kind of value


def read(readers: Mapping[str, Reader], found: Mapping[str, Given]) -> dict[str, Any]:
    """Read what was given, each value by the reader of its key."""
    for name, it in found.items():
        if name not in readers:
            raise unknown(readers, name, it)
    return {name: readers[name](it) for name, it in found.items() if it.value is not None}


def duration(least: int, it: Given) -> int:
    """Read a duration of at least so many milliseconds."""
    try:
        value = durations.milliseconds(it.value)
    except (ValueError, OverflowError):
        value = -1
    if not least <= value <= LONGEST:
        bounds = {0: "from 0", 1: "above 0"}.get(least, f"from {durations.text(least)}")
        raise wrong(it, f"a duration {bounds} to 36500d is right, such as 30 (seconds), '250ms' or '1h30m'")
    return value


def choice(kind: str, it: Given) -> str:
    """Read one of the policies there are."""
    there = POLICIES[kind]
    if it.value in there:
        return str(it.value)
    raise wrong(it, f"one of {', '.join(map(repr, there))} is right{did_you_mean(it.value, there)}")


def store_url(it: Given) -> str:
    """Read the URL of a store there is."""
    url = as_text(it.value)
    scheme, _, rest = url.partition(":")
    there = SCHEMES if scheme in SCHEMES else schemes()
    if scheme not in there or not rest.startswith("//"):
        installed = "".join(f", {one}://" for one in there[len(SCHEMES) :])
        meant = re.split("[:/]", url)[0]  # one of the two may be forgotten
        near = did_you_mean(meant, there, lambda scheme: f"{scheme}://")
        raise wrong(it, A_STORE + installed + near)
    if scheme == "sqlite" and re.fullmatch(r"/{2,3}(:memory:)?(\?.*)?", rest):
        raise wrong(it, "each process would have a store of its own; a file is right, such as sqlite:///jobs.db")
    return url


def metrics_at(it: Given) -> dict[str, Endpoint]:
    """Read where each kind of node tells its metrics."""
    try:
        return endpoints(it.value)
    except ValueError as reason:
        raise wrong(it, str(reason)) from None


def taken(test: Callable[[Any], object], right: str, it: Given) -> Any:
    """Take a value as it is, if it passes a test."""
    if not test(it.value):
        raise wrong(it, right)
    return it.value


positive = partial(duration, 1)
zero_or_more = partial(duration, 0)
flag = partial(taken, lambda it: isinstance(it, bool), "True or False is right")
A_COUNT = f"a whole number from 1 to {MOST} is right"
count = partial(taken, lambda it: type(it) is int and 0 < it <= MOST, A_COUNT)

#: What a job may say for itself. All of it but ``supervised`` is also a setting, for all jobs.
OPTIONS: dict[str, Reader] = {
    **dict.fromkeys(("lease", "heartbeat", "start_timeout", "catch_up_window", "max_runtime"), positive),
    **dict.fromkeys(("jitter", "stop_grace"), zero_or_more),
    **{kind: partial(choice, kind) for kind in POLICIES},
    "max_crashes": count,
    **dict.fromkeys(("handover", "supervised"), flag),
}
SETTINGS: dict[str, Reader] = {
    **{name: reader for name, reader in OPTIONS.items() if name != "supervised"},
    "store": store_url,
    "store_options": partial(taken, lambda it: isinstance(it, dict), A_DICT),
    "node": partial(taken, lambda it: isinstance(it, str) and it.strip() and it.isprintable(), A_NODE),
    "prefix": partial(taken, lambda it: isinstance(it, str) and re.fullmatch(r"(?a)[\w.-]+", it), A_PREFIX),
    **dict.fromkeys(("poll", "history"), positive),
    "claim_timeout": partial(duration, 2_000),
    "first_catch_up": zero_or_more,
    "log_runs": flag,
    "metrics": metrics_at,
}
