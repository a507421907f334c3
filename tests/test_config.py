"""Settings as people write them, and the one line each mistake is answered with."""

import os
import subprocess
import sys
import types
from datetime import timedelta

import pytest
from celery import Celery
from hypothesis import given as for_all
from hypothesis import strategies as st

from anarchon_celery.config import A_STORE, Config, Policy, policy_of, redacted
from anarchon_celery.endpoints import RIGHT
from anarchon_celery.errors import SettingError
from anarchon_celery.stores import SCHEMES

DURATION = "a duration above 0 to 36500d is right, such as 30 (seconds), '250ms' or '1h30m'"
FROM_ZERO = DURATION.replace("above", "from")
OVERLAPS = "one of 'skip', 'queue', 'cancel', 'allow' is right"
CATCH_UPS = "one of 'latest', 'all', 'none' is right"
OWN_STORES = "each process would have a store of its own; a file is right, such as sqlite:///jobs.db"


def app_with(namespace=None, **settings):
    app = Celery(set_as_current=False)
    app.config_from_object({"broker_url": "redis://", **settings}, namespace=namespace)
    return app


def config(**settings):
    return Config.of(app_with(**settings))


def entry(options=None, settings=None, *, time_limit=None, is_crontab=False):
    options = {"queue": "reports"} if options is None else {"queue": "reports", "anarchon": options}
    return policy_of(
        config(**settings or {}), "report", options, time_limit=time_limit, is_crontab=is_crontab
    )


def refusal(ask, *args, **kwargs):
    with pytest.raises(SettingError) as caught:
        ask(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What holds when nothing is said


def test_defaults():
    assert config() == Config(
        store="redis://",
        store_options={},
        node_name=None,
        prefix="anarchon",
        poll=1_000,
        claim_timeout=10_000,
        first_catch_up=60_000,
        history=604_800_000,
        log_runs=True,
        policy=Policy(
            lease=30_000,
            heartbeat=10_000,
            start_timeout=300_000,
            jitter=100,
            overlap="skip",
            catch_up="latest",
            catch_up_window=None,
            max_crashes=3,
            max_runtime=None,
            handover=True,
            stop_grace=5_000,
            supervised=None,
        ),
        cron_deadline=None,
        in_flight=1_100,
        warnings=(),
    )


def test_every_setting_is_read():
    assert config(
        anarchon_store="sqlite:///jobs.db",
        anarchon_store_options={"echo": True},
        anarchon_node="host-a",
        anarchon_prefix="my.app-1_",
        anarchon_poll="500ms",
        anarchon_claim_timeout=5,
        anarchon_first_catch_up=0,
        anarchon_history=timedelta(days=1),
        anarchon_log_runs=False,
        anarchon_lease="1m",
        anarchon_heartbeat="12s",
        anarchon_start_timeout="1h",
        anarchon_jitter=0,
        anarchon_overlap="allow",
        anarchon_catch_up="none",
        anarchon_catch_up_window="1h30m",
        anarchon_max_crashes=1,
        anarchon_max_runtime=0.5,
        anarchon_handover=False,
        anarchon_stop_grace=0,
        beat_cron_starting_deadline=90,
    ) == Config(
        store="sqlite:///jobs.db",
        store_options={"echo": True},
        node_name="host-a",
        prefix="my.app-1_",
        poll=500,
        claim_timeout=5_000,
        first_catch_up=0,
        history=86_400_000,
        log_runs=False,
        policy=Policy(
            lease=60_000,
            heartbeat=12_000,
            start_timeout=3_600_000,
            jitter=0,
            overlap="allow",
            catch_up="none",
            catch_up_window=5_400_000,
            max_crashes=1,
            max_runtime=500,
            handover=False,
            stop_grace=0,
        ),
        cron_deadline=90_000,
        in_flight=1_100,
    )


@pytest.mark.parametrize(
    ("broker", "options", "in_flight"),
    [
        ("redis://localhost/1", {}, 1_100),
        ("rediss://localhost/1", {"polling_interval": 0.5}, 600),
        ("valkey://localhost", {"polling_interval": None}, 1_100),
        ("sentinel://a:26379;sentinel://b:26379", {"master_name": "m"}, 1_100),
        ("amqp://guest@localhost", {"polling_interval": 3}, 0),
        ("filesystem://", {}, 0),
        (None, {}, 0),
    ],
)
def test_for_how_long_a_stopping_worker_is_sent_messages_is_its_brokers(broker, options, in_flight):
    assert in_flight == config(
        broker_url=broker, broker_transport_options=options, anarchon_store="sqlite:///jobs.db"
    ).in_flight  # fmt: skip


def test_none_is_not_given():
    assert config(anarchon_lease=None, anarchon_store=None, anarchon_node=None) == config()
    assert config(beat_cron_starting_deadline=0).cron_deadline is None


def test_heartbeat_is_a_third_of_the_lease():
    assert config(anarchon_lease="1m").policy.heartbeat == 20_000
    assert config(anarchon_lease=1).policy.heartbeat == 333


def test_node_is_this_process_and_its_name_if_it_has_one():
    assert config().node == f"{os.uname().nodename}:{os.getpid()}"
    assert config(anarchon_node="host-a").node == "host-a"


def test_node_of_a_forked_child_is_its_own():
    mine = config()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, mine.node.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1000).decode() == f"{os.uname().nodename}:{child}"


def test_a_shown_config_tells_no_password():
    assert "hush" not in repr(
        config(anarchon_store="redis://:hush@h", anarchon_store_options={"password": "hush"})
    )


# The spellings Celery allows


def from_update(key, value):
    app = Celery(set_as_current=False)
    app.conf.update({key: value})
    return app


def from_attribute(key, value):
    app = Celery(set_as_current=False)
    setattr(app.conf, key, value)
    return app


def from_attribute_late(key, value):
    app = Celery(set_as_current=False)
    assert app.conf.timezone is None
    setattr(app.conf, key, value)
    return app


def from_item(key, value):
    app = Celery(set_as_current=False)
    app.conf[key] = value
    return app


def from_changes(key, value):
    return Celery(set_as_current=False, changes={key: value})


def from_keyword(key, value):
    return Celery(set_as_current=False, **{key: value})


def from_dict(key, value):
    app = Celery(set_as_current=False)
    app.config_from_object({key: value})
    return app


def from_module(key, value):
    module = types.ModuleType("celeryconfig")
    setattr(module, key, value)
    module.anarchon_celery = os  # as ``import anarchon_celery`` leaves it
    module.anarchon_setup = from_dict
    app = Celery(set_as_current=False)
    app.config_from_object(module)
    return app


def from_class(key, value):
    app = Celery(set_as_current=False)
    app.config_from_object(type("Settings", (), {key: value}))
    return app


def from_instance(key, value):
    app = Celery(set_as_current=False)
    app.config_from_object(types.SimpleNamespace(**{key: value}))
    return app


def from_defaults(key, value):
    app = Celery(set_as_current=False)
    app.add_defaults({key: value})
    return app


def from_namespace(key, value):
    app = Celery(set_as_current=False)
    app.config_from_object(types.SimpleNamespace(**{key: value}), namespace="CELERY")
    return app


SOURCES = [
    from_update,
    from_attribute,
    from_attribute_late,
    from_item,
    from_changes,
    from_keyword,
    from_dict,
    from_module,
    from_class,
    from_instance,
    from_defaults,
    from_namespace,
]


@pytest.mark.parametrize("spell", [str.lower, str.upper])
@pytest.mark.parametrize("source", SOURCES)
def test_wherever_it_is_written_it_is_read_and_a_typo_answered(source, spell):
    lease, leese = spell("anarchon_lease"), spell("anarchon_leese")
    assert Config.of(source(lease, "1m")).policy.lease == 60_000
    assert refusal(Config.of, source(leese, 5)) == f"{leese}=5: no such setting; did you mean {lease}?"


@pytest.mark.parametrize("source", [from_namespace, from_dict])
def test_with_celery_in_front_it_is_read_and_a_typo_answered(source):
    assert Config.of(source("CELERY_ANARCHON_LEASE", "1m")).policy.lease == 60_000
    assert (
        refusal(Config.of, source("CELERY_ANARCHON_LEESE", 5))
        == "CELERY_ANARCHON_LEESE=5: no such setting; did you mean CELERY_ANARCHON_LEASE?"
    )


def test_another_namespace():
    app = app_with("JOBS", JOBS_ANARCHON_LEASE="1m")
    assert Config.of(app).policy.lease == 60_000
    assert refusal(Config.of, app_with("jobs", jobs_anarchon_poll=0)) == f"jobs_anarchon_poll=0: {DURATION}"


def test_what_is_set_later_on_the_app_wins():
    app = app_with(anarchon_lease="1m")
    app.conf.anarchon_lease = "2m"
    assert Config.of(app).policy.lease == 120_000
    app.conf.anarchon_lease = None
    assert Config.of(app).policy.lease == 30_000


def test_within_one_place_the_namespace_wins_as_in_celery():
    app = app_with("CELERY", anarchon_lease=40, CELERY_ANARCHON_LEASE=50, ANARCHON_LEASE=60)
    assert (Config.of(app).policy.lease, app.conf.anarchon_lease) == (50_000, 50)


DJANGO = """
import os, sys
from django.conf import settings
settings.configure({settings})
from celery import Celery
from anarchon_celery.config import Config
from anarchon_celery.errors import SettingError
app = Celery('proj')
app.config_from_object('django.conf:settings', namespace='CELERY')
try:
    config = Config.of(app)
    print(config.store, config.policy.lease, config.policy.handover, *config.warnings)
except SettingError as reason:
    print(reason)
"""


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            "CELERY_ANARCHON_STORE='memory://', CELERY_ANARCHON_LEASE='1m', CELERY_ANARCHON_HANDOVER=False",
            "memory:// 60000 False",
        ),
        (
            "CELERY_ANARCHON_LEESE='1m'",
            "CELERY_ANARCHON_LEESE='1m': no such setting; did you mean CELERY_ANARCHON_LEASE?",
        ),
        (
            "CELERY_ANARCHON_OVERLAP='skp'",
            f"CELERY_ANARCHON_OVERLAP='skp': {OVERLAPS}; did you mean 'skip'?",
        ),
        ("CELERY_BROKER_URL='redis://h/1'", "redis://h/1 30000 True"),
        (
            "CELERY_BROKER_URL='amqp://'",
            "sqlite:///anarchon.db 30000 True CELERY_ANARCHON_STORE is not set, and the broker is not Redis: "
            "the store is sqlite:///anarchon.db, which only nodes on this machine see",
        ),
    ],
)
def test_django(settings, line):
    pytest.importorskip("django")
    script = DJANGO.replace("{settings}", settings)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (line, 0), done.stderr


def test_django_settings_module(tmp_path):
    pytest.importorskip("django")
    (tmp_path / "djsettings.py").write_text("import anarchon_celery\nCELERY_ANARCHON_STOR = 'memory://'\n")
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "djsettings",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
    }
    script = DJANGO.replace("settings.configure({settings})", "")
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=env
    )
    line = "CELERY_ANARCHON_STOR='memory://': no such setting; did you mean CELERY_ANARCHON_STORE?"
    assert (done.stdout.strip(), done.returncode) == (line, 0), done.stderr


# What cannot be meant


ALL = (
    "catch_up, catch_up_window, claim_timeout, first_catch_up, handover, heartbeat, history, jitter, lease, "
    "log_runs, max_crashes, max_runtime, metrics, node, overlap, poll, prefix, start_timeout, stop_grace, "
    "store, store_options"
)


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        ("anarchon_leese", "1m", "'1m': no such setting; did you mean anarchon_lease?"),
        ("anarchon_leaseMs", 5000, "5000: no such setting; did you mean anarchon_lease?"),
        ("ANARCHON_HART_BEAT", 5, "5: no such setting; did you mean ANARCHON_HEARTBEAT?"),
        ("anarchon_anarchon_lease", 5, "5: no such setting; did you mean anarchon_lease?"),
        (
            "anarchon_stores",
            "redis://:hush@h",
            "'redis://:***@h': no such setting; did you mean anarchon_store?",
        ),
        (
            "anarchon_store_option",
            {"password": "hush"},
            "<dict>: no such setting; did you mean anarchon_store_options?",
        ),
        ("anarchon_pass", "hush", f"***: no such setting; after anarchon_ come {ALL}"),
        ("anarchon_supervised", True, f"True: no such setting; after anarchon_ come {ALL}"),
        ("ANARCHON", {"lease": 5}, f"<dict>: no such setting; after ANARCHON_ come {ALL}"),
        ("anarchon_leese", None, "<NoneType>: no such setting; did you mean anarchon_lease?"),
        ("anarchon_lease", "5x", f"'5x': {DURATION}"),
        ("anarchon_lease", 0, f"0: {DURATION}"),
        ("anarchon_lease", -1, f"-1: {DURATION}"),
        ("anarchon_lease", True, f"True: {DURATION}"),
        ("anarchon_lease", float("nan"), f"nan: {DURATION}"),
        ("anarchon_lease", 10**400, f"1{'0' * 96}...: {DURATION}"),
        ("anarchon_lease", [30], f"<list>: {DURATION}"),
        ("anarchon_lease", timedelta(seconds=-1), f"-1 day, 23:59:59: {DURATION}"),
        ("anarchon_lease", 0.0001, f"0.0001: {DURATION}"),
        ("anarchon_lease", "1\n2", f"'1\\n2': {DURATION}"),
        ("anarchon_heartbeat", 0, f"0: {DURATION}"),
        ("anarchon_start_timeout", 0, f"0: {DURATION}"),
        ("anarchon_catch_up_window", 0, f"0: {DURATION}"),
        ("anarchon_max_runtime", 0, f"0: {DURATION}"),
        ("anarchon_poll", 0, f"0: {DURATION}"),
        ("anarchon_claim_timeout", 0, f"0: {DURATION.replace('above 0', 'from 2s')}"),
        ("anarchon_claim_timeout", "1999ms", f"'1999ms': {DURATION.replace('above 0', 'from 2s')}"),
        ("anarchon_history", "36501d", f"'36501d': {DURATION}"),
        ("anarchon_jitter", -0.1, f"-0.1: {FROM_ZERO}"),
        ("anarchon_first_catch_up", "soon", f"'soon': {FROM_ZERO}"),
        ("anarchon_stop_grace", False, f"False: {FROM_ZERO}"),
        (
            "anarchon_lease",
            0.001,
            "0.001: a lease shorter than two heartbeats (lease 1ms, heartbeat 1ms); "
            "a lease of at least 2ms is right, or a shorter heartbeat",
        ),
        (
            "anarchon_heartbeat",
            "20s",
            "'20s': a lease shorter than two heartbeats (lease 30s, heartbeat 20s); "
            "a lease of at least 40s is right, or a shorter heartbeat",
        ),
        ("anarchon_overlap", "skp", f"'skp': {OVERLAPS}; did you mean 'skip'?"),
        ("anarchon_overlap", "ALLOW", f"'ALLOW': {OVERLAPS}; did you mean 'allow'?"),
        ("anarchon_overlap", "none", f"'none': {OVERLAPS}"),
        ("anarchon_overlap", False, f"False: {OVERLAPS}"),
        ("anarchon_overlap", ["skip"], f"<list>: {OVERLAPS}; did you mean 'skip'?"),
        ("anarchon_catch_up", "last", f"'last': {CATCH_UPS}; did you mean 'latest'?"),
        ("anarchon_max_crashes", 0, "0: a whole number from 1 to 1000000 is right"),
        ("anarchon_max_crashes", 2.0, "2.0: a whole number from 1 to 1000000 is right"),
        ("anarchon_max_crashes", 10**30, f"{10**30}: a whole number from 1 to 1000000 is right"),
        ("anarchon_max_crashes", True, "True: a whole number from 1 to 1000000 is right"),
        ("anarchon_handover", "yes", "'yes': True or False is right"),
        ("anarchon_log_runs", 0, "0: True or False is right"),
        ("anarchon_prefix", "", "'': a text of letters, digits, '_', '.' and '-' is right"),
        ("anarchon_prefix", "a b", "'a b': a text of letters, digits, '_', '.' and '-' is right"),
        ("anarchon_prefix", "jöbs", "'jöbs': a text of letters, digits, '_', '.' and '-' is right"),
        ("anarchon_prefix", "a\n", "'a\\n': a text of letters, digits, '_', '.' and '-' is right"),
        ("anarchon_prefix", 5, "5: a text of letters, digits, '_', '.' and '-' is right"),
        ("anarchon_node", " ", "' ': a text of one line is right, such as 'host-a'"),
        ("anarchon_node", "a\nb", "'a\\nb': a text of one line is right, such as 'host-a'"),
        ("anarchon_node", 5, "5: a text of one line is right, such as 'host-a'"),
        *[
            ("anarchon_metrics", given, f"{said}: {RIGHT}")
            for given, said in (
                (65536, "65536"), (-1, "-1"), (True, "True"), ("localhost", "'localhost'"), ("h:x", "'h:x'"),
                ("::1:9808", "'::1:9808'"), ([9808], "<list>"), ({"beat": 9808, "flower": 5555}, "<dict>"),
                ({"beat": "h"}, "<dict>"), ("..:9808", "'..:9808'"), ("ä..b:9808", "'ä..b:9808'"),
            )
        ],
        ("anarchon_store_options", "x=1", "'x=1': a dict is right"),
        ("anarchon_store", "redsi://:hush@h", f"'redsi://:***@h': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "sqllite:///a.db", f"'sqllite:///a.db': {A_STORE}; did you mean sqlite://?"),
        ("anarchon_store", "oracle://h", f"'oracle://h': {A_STORE}"),
        ("anarchon_store", "jobs.db", f"'jobs.db': {A_STORE}"),
        ("anarchon_store", "redis:hush@h", f"'redis:***@h': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "redis//localhost", f"'redis//localhost': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "redis//:hush@h:6379", f"'redis//:***@h:6379': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "redis:/localhost", f"'redis:/localhost': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "redis-cluster//h:1", f"'redis-cluster//h:1': {A_STORE}; did you mean redis+cluster://?"),
        ("anarchon_store", "mysql//localhost/jobs", f"'mysql//localhost/jobs': {A_STORE}; did you mean mysql://?"),
        ("anarchon_store", "", f"'': {A_STORE}"),
        ("anarchon_store", 5, f"5: {A_STORE}"),
        ("anarchon_store", "REDIS://h", f"'REDIS://h': {A_STORE}; did you mean redis://?"),
        ("anarchon_store", "Sqlite:///a.db", f"'Sqlite:///a.db': {A_STORE}; did you mean sqlite://?"),
        (
            "anarchon_store", "postgresql+psycopg2://u:hush@h/d",
            f"'postgresql+psycopg2://u:***@h/d': {A_STORE}; did you mean postgresql+psycopg://?",
        ),
        *[
            ("anarchon_store", url, f"'{url}': {OWN_STORES}")
            for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///:memory:?timeout=5")
        ],
        ("beat_cron_starting_deadline", "soon", f"'soon': {DURATION}"),
    ],
)
def test_a_setting_that_cannot_be_meant(key, value, answer):
    assert refusal(config, **{key: value}) == f"{key}={answer}"


def test_two_settings_that_do_not_go_together():
    assert refusal(config, anarchon_lease="5s", anarchon_heartbeat="3s") == (
        "anarchon_heartbeat='3s': a lease shorter than two heartbeats (lease 5s, heartbeat 3s); "
        "a lease of at least 6s is right, or a shorter heartbeat"
    )
    assert config(anarchon_lease="6s", anarchon_heartbeat="3s").policy.heartbeat == 3_000


@pytest.mark.parametrize(
    ("settings", "given", "shown"),
    [
        ({"anarchon_lease": 0.9}, "anarchon_lease=0.9", ("900ms", "500ms", "300ms")),
        (
            {"anarchon_lease": "1200ms", "anarchon_heartbeat": "600ms"},
            "anarchon_heartbeat='600ms'",
            ("1s200ms", "500ms", "600ms"),
        ),
    ],
)
def test_a_lease_that_leaves_no_time_for_a_heartbeat(settings, given, shown):
    lease, early, beat = shown
    why = f"a lease of {lease} is given up {early} early: no time is left for a heartbeat every {beat}"
    assert f"{given}: {why}; a longer one is right, of 1s at least" == refusal(config, **settings)
    assert 333 == config(anarchon_lease=1).policy.heartbeat
    own = {name.removeprefix("anarchon_"): value for name, value in settings.items()}
    line = f"entry 'report': {given.removeprefix('anarchon_')}: {why}; a longer one is right, of 1s at least"
    assert line == refusal(entry, own)


def test_the_shortest_claim_timeout():
    assert 2_000 == config(anarchon_claim_timeout=2).claim_timeout


def test_a_file_may_be_a_store_wherever_it_lies():
    for url in ("sqlite:///a.db", "sqlite:////var/lib/a.db", "sqlite:///a.db?timeout=5"):
        assert url == config(anarchon_store=url).store


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stores_there_are(scheme):
    assert config(anarchon_store=f"{scheme}://x").store == f"{scheme}://x"


def test_the_line_about_stores_names_them():
    line = f"a URL is right that begins with one of {'://, '.join(SCHEMES)}://"
    assert line == A_STORE


# The broker as store


@pytest.mark.parametrize(
    ("broker", "store"),
    [
        ("redis://:pw@h:6379/1?ssl_cert_reqs=none", "redis://:pw@h:6379/1?ssl_cert_reqs=none"),
        ("rediss://h", "rediss://h"),
        ("REDIS://h", "REDIS://h"),
        ("redis://a;redis://b", "redis://a"),
        (["redis://a", "redis://b"], "redis://a"),
        ("valkey://h", "valkey://h"),
        ("redis+socket:///r.sock?virtual_host=1", "redis+socket:///r.sock?virtual_host=1"),
        ("unix:///r.sock", "unix:///r.sock"),
        ("sentinel://a; sentinel://b/1", "sentinel://a;sentinel://b/1"),
        (["sentinel://a", "sentinel://b"], "sentinel://a;sentinel://b"),
        ("rediss+cluster://a,b", "rediss+cluster://a,b"),
        ("redis+cluster://a;redis+cluster://b", "redis+cluster://a;redis+cluster://b"),
    ],
)
def test_a_redis_broker_is_the_store(broker, store):
    assert (config(broker_url=broker).store, config(broker_url=broker).warnings) == (store, ())


@pytest.mark.parametrize(
    "broker", ["amqp://", None, "", [], "redis", "filesystem://", "sqla+sqlite:///a.db", "memory://"]
)
def test_another_broker_is_not_and_a_warning_says_so(broker):
    assert (config(broker_url=broker).store, config(broker_url=broker).warnings) == (
        "sqlite:///anarchon.db",
        (
            "anarchon_store is not set, and the broker is not Redis: the store is sqlite:///anarchon.db, "
            "which only nodes on this machine see",
        ),
    )


def test_a_redis_that_cannot_be_the_store_is_refused():
    assert refusal(config, broker_url="redis+what://u:hush@h:1") == (
        f"anarchon_store is not set, and the broker 'redis+what://u:***@h:1' cannot be the store: {A_STORE}"
    )
    assert config(broker_url="redis+what://h", anarchon_store="memory://").store == "memory://"


def test_what_celery_is_told_of_its_broker_elsewhere_is_told_of_the_store():
    transport = {"master_name": "m", "sentinel_kwargs": {"password": "hush"}, "visibility_timeout": 60}
    both = {"broker_url": "sentinel://h", "broker_transport_options": transport}
    of_sentinels = {"master_name": "m", "sentinel_kwargs": {"password": "hush"}}
    assert config(**both).store_options == of_sentinels
    assert config(**both, anarchon_store_options={"master_name": "other"}).store_options == (
        of_sentinels | {"master_name": "other"}
    )
    assert config(**both, anarchon_store="sentinel://h").store_options == {}
    assert config(broker_url="redis://h", broker_transport_options=transport).store_options == {}
    secure = {"ssl_ca_certs": "/ca.pem"}
    assert config(broker_url="rediss://h", broker_use_ssl=secure).store_options == {"ssl": True, **secure}
    assert config(broker_url="redis://h", broker_use_ssl=True).store_options == {"ssl": True}
    assert config(broker_url="amqp://", broker_use_ssl={"keyfile": "/k.pem"}).store_options == {}


def test_the_broker_that_is_written_to_is_the_store(monkeypatch):
    assert (
        config(broker_url="amqp://", broker_write_url="redis://w", broker_read_url="redis://r").store
        == "redis://w"
    )
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://env")
    assert config(broker_url="amqp://").store == "redis://env"


# One entry's own policy


def test_an_entry_that_says_nothing_has_the_settings():
    assert entry() == entry({}) == config().policy
    assert entry({"lease": None}, {"anarchon_lease": "1m"}).lease == 60_000


def test_an_entry_says_all_for_itself():
    assert entry(
        {
            "lease": "1m",
            "heartbeat": "12s",
            "start_timeout": "1h",
            "jitter": 0,
            "overlap": "allow",
            "catch_up": "none",
            "catch_up_window": "1h",
            "max_crashes": 1,
            "max_runtime": "2h",
            "handover": False,
            "stop_grace": 0,
            "supervised": False,
        },
        time_limit=5,
        is_crontab=True,
    ) == Policy(
        lease=60_000,
        heartbeat=12_000,
        start_timeout=3_600_000,
        jitter=0,
        overlap="allow",
        catch_up="none",
        catch_up_window=3_600_000,
        max_crashes=1,
        max_runtime=7_200_000,
        handover=False,
        stop_grace=0,
        supervised=False,
    )


def test_an_entry_s_lease_brings_its_third_even_past_a_set_heartbeat():
    assert entry({"lease": "6s"}, {"anarchon_heartbeat": "9s"}).heartbeat == 2_000
    assert entry({"heartbeat": "15s"}).lease == 30_000


def test_max_runtime_is_the_entry_s_else_the_setting_s_else_the_time_limit():
    setting = {"anarchon_max_runtime": 20}
    assert entry({"max_runtime": 10}, setting, time_limit=30.5).max_runtime == 10_000
    assert entry(None, setting, time_limit=30.5).max_runtime == 20_000
    assert entry(None, None, time_limit=30.5).max_runtime == 30_500
    assert entry(None, None, time_limit=0).max_runtime is None


def test_catch_up_window_of_a_crontab_may_be_celery_s():
    celery, setting = {"beat_cron_starting_deadline": 30}, {"anarchon_catch_up_window": 20}
    assert entry({"catch_up_window": 10}, {**celery, **setting}, is_crontab=True).catch_up_window == 10_000
    assert entry(None, {**celery, **setting}, is_crontab=True).catch_up_window == 20_000
    assert entry(None, celery, is_crontab=True).catch_up_window == 30_000
    assert entry(None, celery, is_crontab=False).catch_up_window is None
    assert entry(None, None, is_crontab=True).catch_up_window is None


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"leese": "1m"}, "leese='1m': no such setting; did you mean lease?"),
        ({"anarchon_lease": "1m"}, "anarchon_lease='1m': no such setting; did you mean lease?"),
        ({"OVERLAP": "skip"}, "OVERLAP='skip': no such setting; did you mean overlap?"),
        (
            {"poll": 1},
            "poll=1: no such setting; there are catch_up, catch_up_window, handover, heartbeat, jitter, "
            "lease, max_crashes, max_runtime, overlap, start_timeout, stop_grace, supervised",
        ),
        ({"lease": "soon"}, f"lease='soon': {DURATION}"),
        ({"overlap": "skipp"}, f"overlap='skipp': {OVERLAPS}; did you mean 'skip'?"),
        ({"supervised": "learned"}, "supervised='learned': True or False is right"),
        (
            {"heartbeat": "20s"},
            "heartbeat='20s': a lease shorter than two heartbeats (lease 30s, heartbeat 20s); "
            "a lease of at least 40s is right, or a shorter heartbeat",
        ),
        ("lease=1m", "options['anarchon']='lease=1m': a dict is right"),
        ([], "options['anarchon']=<list>: a dict is right"),
    ],
)
def test_an_entry_that_cannot_be_meant(options, answer):
    assert refusal(entry, options) == f"entry 'report': {answer}"


def test_a_time_limit_that_cannot_be_meant():
    assert refusal(entry, None, None, time_limit="soon") == f"entry 'report': time_limit='soon': {DURATION}"


# URLs for people


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/1", "redis://localhost:6379/1"),
        ("redis://:hush@h:6379/1", "redis://:***@h:6379/1"),
        ("redis://user:hush@h", "redis://user:***@h"),
        ("redis://user@h", "redis://user@h"),
        ("redis://:hu@sh/hu#sh@h/0", "redis://:***@h/0"),
        ("redis://:hu?sh@h/0", "redis://:***@h/0"),
        ("redis://:h1@a;redis://:h2@b", "redis://:***@a;redis://:***@b"),
        ("sentinel://u:h1@a;sentinel://:h2@b/0?master_name=m", "sentinel://u:***@a;sentinel://:***@b/0?master_name=m"),
        ("sentinel://a/0?sentinel_password=hush&master_name=m", "sentinel://a/0?sentinel_password=***&master_name=m"),
        ("redis+cluster://u:h1@a:7000,:h2@b", "redis+cluster://u:***@b"),
        ("redis+socket://:hush@/r.sock?virtual_host=1", "redis+socket://:***@/r.sock?virtual_host=1"),
        ("unix://u@/r.sock?db=1&password=hush", "unix://u@/r.sock?db=1&password=***"),
        ("redis://h:6379/0?a=x@y", "redis://h:6379/0?a=x@y"),
        ("redis://:hush@h/0?a=x@y", "redis://:***@h/0?a=x@y"),
        ("redis://h?password=hush&db=1", "redis://h?password=***&db=1"),
        (
            "rediss://h?ssl_keyfile=/k.pem&ssl_password=hush&sentinel_password=hush",
            "rediss://h?ssl_keyfile=/k.pem&ssl_password=***&sentinel_password=***",
        ),
        ("postgresql+psycopg://u:hush@[::1]:5432/db", "postgresql+psycopg://u:***@[::1]:5432/db"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("sqlite:////var/a:b@c.db", "sqlite:////var/a:b@c.db"),
        ("memory://", "memory://"),
        ("", ""),
        ("nonsense @:// ;", "nonsense @:// ;"),
        ("redis:hush@h", "redis:***@h"),
        ("redis:/:hush@h", "redis:***@h"),
        (":hush@h:6379", ":***@h:6379"),
        (None, "None"),
    ],
)
def test_redacted(url, shown):
    assert redacted(url) == shown


@for_all(st.one_of(st.text(), st.none(), st.integers(), st.binary()))
def test_redacted_takes_anything(nonsense):
    assert isinstance(redacted(nonsense), str)


@for_all(st.text(st.characters(exclude_characters="?&;/", exclude_categories=["Cs"])))
def test_redacted_hides_any_password(password):
    secret = f"s3cret{password}s3cret"
    assert redacted(f"redis://user:{secret}@host:6379/0?db=1") == "redis://user:***@host:6379/0?db=1"


LOCAL = "timezone is not set and enable_utc is False: local times are this host's; set timezone"


@pytest.mark.parametrize(
    ("conf", "warnings"),
    [
        ({}, ()),
        ({"enable_utc": False}, (LOCAL,)),
        ({"enable_utc": False, "timezone": "Europe/Berlin"}, ()),
        ({"timezone": "Europe/Berlin"}, ()),
    ],
)
def test_local_times_that_are_those_of_each_host_are_warned_of(conf, warnings):
    assert warnings == config(anarchon_store="redis://h", **conf).warnings


# Where metrics are told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (9808, {"beat": "127.0.0.1:9808", "worker": "127.0.0.1:9808"}),
        ("9808", {"beat": "127.0.0.1:9808", "worker": "127.0.0.1:9808"}),
        ("0.0.0.0:9808", {"beat": "0.0.0.0:9808", "worker": "0.0.0.0:9808"}),
        ("[::1]:9808", {"beat": "[::1]:9808", "worker": "[::1]:9808"}),
        ({"beat": 9808, "worker": "host-a:9809"}, {"beat": "127.0.0.1:9808", "worker": "host-a:9809"}),
        ({"beat": 9808}, {"beat": "127.0.0.1:9808"}),
        ({"beat": 9808, "worker": None}, {"beat": "127.0.0.1:9808"}),
        (None, {}),
    ],
)
def test_where_metrics_are_told(given, told):
    assert told == {kind: str(endpoint) for kind, endpoint in config(anarchon_metrics=given).metrics.items()}


@pytest.mark.parametrize("key", ["a\nb", "a" * 20_000, "\ud800", "\x1b[31m", ""])
def test_whatever_an_entry_calls_its_key_the_answer_is_a_line(key):
    with pytest.raises(SettingError) as refused:
        policy_of(Config("memory://"), "report", {"anarchon": {key: 1}}, time_limit=None, is_crontab=False)
    (line,) = str(refused.value).splitlines()
    assert line.startswith("entry 'report': ")
    assert len(line) < 500
    assert line.isprintable()


@pytest.mark.parametrize("url", ["rediss//user:secret@[::1", "//user:secret@host", "redis:/user:secret@host"])
def test_a_password_is_hidden_though_the_url_is_none(url):
    assert "secret" not in redacted(url)
    assert "***@" in redacted(url)
