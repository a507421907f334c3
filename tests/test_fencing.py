"""Conditional writes: who is late is refused, by the real SQLite, PostgreSQL, MariaDB, Redis and Django.

What a refusal makes of a run is in test_task.py, a worker that wakes up too late in cluster/test_takeover.py.
"""

from __future__ import annotations

import json
import pickle
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    create_mock_engine,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session, declarative_base

from anarchon_celery.errors import AnarchonError, StaleFence
from anarchon_celery.fencing import fenced_hset, fenced_update, fenced_upsert, fenced_write
from anarchon_celery.lease import Lease, LeaseLost, StaleRun, held
from tests.databases import DATABASES
from tests.processes import wait_until
from tests.servers import RedisCluster

ROOT = str(Path(__file__).parents[1])

#: Of two runs of one job; as they are minted, they are larger than what 32 bits hold.
EARLY, LATE = 1_796_000_000_000_001, 1_796_000_000_000_002


def lease_with(fence: int, job: str | None = "report") -> Lease:
    lease = Lease()
    lease.fence, lease.job = fence, job
    return lease


# The error --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StaleFence("rates", 7, 8), "rates: written by a run with fence 8, so fence 7 is refused"),
        (StaleFence("rates", 7), "rates: written by a later run, so fence 7 is refused"),
        (
            StaleFence("rates", 0, 8),
            "rates: written by a run with fence 8, so a call outside a run (fence 0) is refused",
        ),
    ],
)
def test_the_error_says_who_is_late(error, line):
    assert line == str(error)


def test_the_error_travels_in_a_result():
    sent = pickle.loads(pickle.dumps(StaleFence("rates", 7, 8)))
    assert ("rates", 7, 8) == (sent.resource, sent.fence, sent.stored)
    assert str(sent) == str(StaleFence(*json.loads(json.dumps(sent.args))))


# Anything ---------------------------------------------------------------------------------------


def test_anything_that_answers_whether_it_wrote():
    assert 3 == fenced_write("the file", lambda fence: fence - 4, fence=7)
    for answer in (0, False, None):
        with pytest.raises(StaleFence, match="^the file: .* fence 7 is refused") as refused:
            fenced_write("the file", lambda fence, answer=answer: answer, fence=7)
        assert StaleFence is type(refused.value)


def test_the_fence_is_that_of_the_threads_run():
    with held(lease_with(7)):
        assert 7 == fenced_write("it", lambda fence: fence)
        assert 9 == fenced_write("it", lambda fence: fence, fence=9)
        with pytest.raises(StaleRun) as refused:
            fenced_write("it", lambda fence: False)
    assert 7 == refused.value.fence
    assert not isinstance(refused.value, LeaseLost)
    with pytest.raises(StaleFence, match=r"a call outside a run \(fence 0\) is refused"):
        fenced_write("it", lambda fence: False)


# SQLAlchemy -------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def engine(request):
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'rates.db'}?timeout=20"
    else:
        url = request.getfixturevalue(f"{request.param}_server").url()
    engine = create_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def rates(engine):
    """A table of what a euro costs, and its class; the fence was added later, and may be NULL."""
    Base = declarative_base()

    class Rate(Base):
        __table__ = Table(
            f"rates_{secrets.token_hex(4)}", Base.metadata,
            Column("currency", String(3), primary_key=True), Column("cents", Integer),
            Column("fence", BigInteger),
        )  # fmt: skip

    Base.metadata.create_all(engine)
    yield Rate
    Base.metadata.drop_all(engine)


def stored(engine, rates) -> list[tuple]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(select(rates.__table__).order_by("currency"))]


def write_by_update(engine, rates, cents: int, fence: int | None = None) -> None:
    statement = update(rates.__table__).where(rates.__table__.c.currency == "USD").values(cents=cents)
    with engine.begin() as connection:
        assert 1 == fenced_update(connection, statement, fence=fence)


def write_by_upsert(engine, rates, cents: int, fence: int | None = None) -> None:
    with engine.begin() as connection:
        fenced_upsert(connection, rates.__table__, {"currency": "USD"}, {"cents": cents}, fence=fence)


def update_by_session(engine, rates, cents: int, fence: int | None = None) -> None:
    with Session(engine) as session, session.begin():
        rate = session.get(rates, "USD")
        fenced_update(session, update(rates).where(rates.currency == "USD").values(cents=cents), fence=fence)
        session.expire_all()
        assert cents == rate.cents


def upsert_by_session(engine, rates, cents: int, fence: int | None = None) -> None:
    with Session(engine) as session, session.begin():
        fenced_upsert(session, rates, {"currency": "USD"}, {"cents": cents}, fence=fence)


WRITES = [write_by_update, write_by_upsert, update_by_session, upsert_by_session]


@pytest.mark.parametrize("write", WRITES)
def test_a_stale_writer_is_refused_by_a_database(engine, rates, write):
    with engine.begin() as connection:
        connection.execute(insert(rates.__table__).values(currency="USD", cents=100))
    write(engine, rates, 101, EARLY)
    write(engine, rates, 102, EARLY)
    assert [("USD", 102, EARLY)] == stored(engine, rates), "one run writes as often as it likes"
    write(engine, rates, 103, LATE)
    for fence in (EARLY, 0):
        with pytest.raises(StaleFence, match=f"^{rates.__table__.name}") as refused:
            write(engine, rates, 104, fence)
        assert (fence, LATE) == (refused.value.fence, refused.value.stored)
    assert [("USD", 103, LATE)] == stored(engine, rates)


@pytest.mark.parametrize("write", [write_by_upsert, upsert_by_session])
def test_a_row_is_made(engine, rates, write):
    with held(lease_with(EARLY)):
        write(engine, rates, 101)
    assert [("USD", 101, EARLY)] == stored(engine, rates)


def test_a_call_by_hand_writes_what_no_run_wrote(engine, rates):
    write_by_upsert(engine, rates, 101)
    write_by_update(engine, rates, 102)
    assert [("USD", 102, 0)] == stored(engine, rates)


def test_rows_of_a_later_run_are_left_and_told(engine, rates):
    rows = [
        {"currency": "CHF", "cents": 1, "fence": LATE}, {"currency": "JPY", "cents": 2, "fence": EARLY},
        {"currency": "USD", "cents": 3, "fence": None},
    ]  # fmt: skip
    with engine.begin() as connection:
        connection.execute(insert(rates.__table__), rows)
        with pytest.raises(StaleFence):
            fenced_update(connection, update(rates.__table__).values(cents=9), fence=EARLY)
    assert [("CHF", 1, LATE), ("JPY", 9, EARLY), ("USD", 9, EARLY)] == stored(engine, rates)


def test_no_row_is_no_refusal(engine, rates):
    gone = update(rates.__table__).where(rates.__table__.c.currency == "XXX").values(cents=1)
    with engine.begin() as connection:
        assert 0 == fenced_update(connection, gone, fence=EARLY)


def test_another_column(engine):
    metadata = MetaData()
    name = f"shared_{secrets.token_hex(4)}"
    columns = [Column(it, BigInteger) for it in ("cents", "stock", "price_fence", "stock_fence")]
    table = Table(name, metadata, Column("id", Integer, primary_key=True), *columns)
    metadata.create_all(engine)
    try:
        with engine.begin() as connection:
            fenced_upsert(connection, table, {"id": 1}, {"cents": 5}, fence=LATE, column="price_fence")
            fenced_upsert(connection, table, {"id": 1}, {"stock": 6}, fence=EARLY, column="stock_fence")
            assert (1, 5, 6, LATE, EARLY) == tuple(connection.execute(select(table)).one())
    finally:
        metadata.drop_all(engine)


@pytest.mark.parametrize("write", [write_by_update, write_by_upsert])
def test_who_waited_for_a_later_run_is_refused(engine, rates, write):
    """The first one's transaction began before: it is not shown what was then."""
    if engine.dialect.name == "sqlite":
        pytest.skip("one transaction at a time is all that SQLite has")
    write_by_upsert(engine, rates, 100, EARLY - 1)
    with ThreadPoolExecutor(1) as beside, engine.connect() as late:
        fenced_upsert(late, rates.__table__, {"currency": "USD"}, {"cents": 102}, fence=LATE)
        early = beside.submit(write, engine, rates, 101, EARLY)
        wait_until(lambda: waits(engine) or early.done())
        assert not early.done()
        late.commit()
        assert isinstance(early.exception(15), StaleFence)
    assert [("USD", 102, LATE)] == stored(engine, rates)


def waits(engine) -> bool:
    """Whether somebody waits for a lock."""
    with engine.connect() as connection:
        return int(connection.execute(text(WAITS[engine.dialect.name])).one()[-1]) > 0


#: How many wait for a lock, in the last column.
WAITS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
    "mysql": "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
}


def test_what_a_transaction_saw_when_it_began_does_not_count(engine, rates):
    """MariaDB shows a transaction the row as it was, while it updates it as it is."""
    if engine.dialect.name != "mysql":
        pytest.skip("of MariaDB: others refuse such a transaction, or show it what is")
    write_by_upsert(engine, rates, 100, EARLY - 1)
    with engine.begin() as early:
        assert 1 == len(early.execute(select(rates.__table__)).all())
        write_by_upsert(engine, rates, 102, LATE)
        with pytest.raises(StaleFence):
            fenced_upsert(early, rates.__table__, {"currency": "USD"}, {"cents": 101}, fence=EARLY)
    assert [("USD", 102, LATE)] == stored(engine, rates)


def at_once(*writes) -> None:
    """Let each write in a thread of its own, all from one moment on; those that are refused are late."""
    start = threading.Barrier(len(writes))

    def work(write) -> None:
        start.wait(10)
        with suppress(StaleFence):
            write()

    with ThreadPoolExecutor(len(writes)) as threads:
        for done in [threads.submit(work, write) for write in writes]:
            done.result(30)


def test_of_writers_at_once_the_latest_wins_also_where_they_make_the_row(engine, rates):
    for number in range(10):
        currency = {"currency": f"{number:03}"}

        def write(fence: int, currency=currency) -> None:
            with engine.begin() as connection:
                fenced_upsert(connection, rates, currency, {"cents": fence - EARLY}, fence=fence)

        at_once(*(lambda fence=fence: write(fence) for fence in (LATE, EARLY, EARLY)))
    assert [(f"{number:03}", 1, LATE) for number in range(10)] == stored(engine, rates)


def test_another_database_is_told_what_to_do():
    connection = create_mock_engine("oracle://", print)
    table = Table("rates", MetaData(), Column("fence", BigInteger))
    with pytest.raises(AnarchonError, match="on oracle: make the row first, then use fenced_update"):
        fenced_upsert(connection, table, {"currency": "USD"}, {"cents": 1})


# Redis ------------------------------------------------------------------------------------------


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


def test_a_stale_writer_is_refused_by_redis(client):
    fenced_hset(client, "rate:USD", {"cents": 100, "note": "first"}, fence=EARLY)
    fenced_hset(client, "rate:USD", {"cents": 101}, fence=EARLY)
    assert {"cents": "101", "note": "first", "fence": str(EARLY)} == client.hgetall("rate:USD")
    with held(lease_with(LATE)):
        fenced_hset(client, "rate:USD", {"cents": 102})
    with pytest.raises(StaleFence, match="^the hash rate:USD: ") as refused:
        fenced_hset(client, "rate:USD", {"cents": 103}, fence=EARLY)
    assert (EARLY, LATE) == (refused.value.fence, refused.value.stored)
    assert {"cents": "102", "note": "first", "fence": str(LATE)} == client.hgetall("rate:USD")
    fenced_hset(client, "rate:USD", client.hgetall("rate:USD"), fence=LATE + 1)
    assert str(LATE + 1) == client.hget("rate:USD", "fence")


def test_a_call_by_hand_writes_a_hash_that_no_run_wrote(client):
    client.hset("rate:USD", "cents", 100)
    fenced_hset(client, "rate:USD", {"cents": 101})
    fenced_hset(client, "rate:USD", {"cents": 102}, field="token", fence=LATE)
    assert {"cents": "102", "fence": "0", "token": str(LATE)} == client.hgetall("rate:USD")
    with pytest.raises(StaleFence, match="outside a run"):
        fenced_hset(client, "rate:USD", {"cents": 103}, field="token")


def test_a_client_that_decodes_nothing_and_a_large_hash(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        fenced_hset(client, "large", {f"field-{n}": n for n in range(10_000)}, fence=LATE)
        assert 10_001 == client.hlen("large")
        with pytest.raises(StaleFence) as refused:
            fenced_hset(client, "large", {"field-1": 0}, fence=EARLY)
        assert LATE == refused.value.stored


def test_of_writers_at_once_the_latest_wins_in_redis(client):
    for number in range(20):
        key = f"rate:{number}"
        at_once(*(
            lambda fence=fence, key=key: fenced_hset(client, key, {"by": fence}, fence=fence)
            for fence in (LATE, EARLY, EARLY)
        ))  # fmt: skip
        assert {"by": str(LATE), "fence": str(LATE)} == client.hgetall(key)


@pytest.mark.slow
def test_a_cluster_takes_it(tmp_path):
    servers = RedisCluster(tmp_path)
    try:
        servers.start()
        with redis.RedisCluster(host="127.0.0.1", port=servers.masters[0].port) as client:
            for key in ("a", "b", "c", "d"):
                fenced_hset(client, key, {"cents": 1}, fence=LATE)
                with pytest.raises(StaleFence):
                    fenced_hset(client, key, {"cents": 2}, fence=EARLY)
    finally:
        servers.close()


# Django: in a process of its own, since its settings are the whole process's --------------------

ON_DJANGO = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
import django
from django.conf import settings
from sqlalchemy import create_engine, make_url

url = make_url(sys.argv[1])
engine = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}[url.get_backend_name()]
if engine == "mysql":
    import pymysql
    pymysql.version_info = (2, 2, 7, "final", 0)  # whom it stands for
    pymysql.install_as_MySQLdb()
options = {"sqlite3": {"timeout": 20}, "mysql": {"isolation_level": "repeatable read"}}
database = {"ENGINE": "django.db.backends." + engine, "NAME": url.database, "USER": url.username or "",
            "HOST": url.host or "", "PORT": url.port or "",
            "OPTIONS": options.get(engine, {})}
settings.configure(DATABASES={"default": database}, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()

from django.db import connection, connections, models, transaction
from anarchon_celery.errors import StaleFence
from anarchon_celery.fencing import fenced
from anarchon_celery.lease import Lease, held
from tests.processes import wait_until
from tests.test_fencing import waits

EARLY, LATE = 1_796_000_000_000_001, 1_796_000_000_000_002

class Bank(models.Model):
    name = models.CharField(max_length=10)
    class Meta:
        app_label, db_table = "shop", "fenced_bank"

class Rate(models.Model):
    currency = models.CharField(max_length=3, unique=True)
    cents = models.IntegerField(default=0)
    bank = models.ForeignKey(Bank, models.CASCADE, null=True)
    fence = models.BigIntegerField(null=True)
    class Meta:
        app_label, db_table = "shop", "fenced_rate"

with connection.schema_editor() as editor:
    editor.create_model(Bank)
    editor.create_model(Rate)

def rows():
    return list(Rate.objects.order_by("currency").values_list("currency", "cents", "fence"))

def refused(write):
    try:
        write()
    except StaleFence as reason:
        return reason
    raise AssertionError("not refused")

def story():
    rate = Rate.objects.create(currency="USD", bank=Bank.objects.create(name="ours"))
    for fence, cents in ((0, 100), (EARLY, 101), (EARLY, 102), (LATE, 103)):
        lease = Lease()
        lease.fence = fence
        with held(lease):
            assert 1 == fenced(Rate.objects.filter(currency="USD")).update(cents=cents)
        assert [("USD", cents, fence)] == rows()
    late = refused(lambda: fenced(Rate.objects.filter(currency="USD"), fence=EARLY).update(cents=1))
    assert ("shop.Rate", EARLY, LATE) == (late.resource, late.fence, late.stored)
    refused(lambda: fenced(Rate.objects).update(cents=1))
    assert [("USD", 103, LATE)] == rows()
    assert 0 == fenced(Rate.objects.filter(currency="XXX"), fence=EARLY).update(cents=1)

    made, new = fenced(Rate.objects, fence=EARLY).update_or_create(currency="CHF", defaults={"cents": 7})
    assert (new, made.cents, made.fence) == (True, 7, EARLY)
    made, new = fenced(Rate.objects, fence=LATE).update_or_create({"cents": 8}, currency="CHF")
    assert (new, made.cents, made.fence) == (False, 8, LATE)
    refused(lambda: fenced(Rate.objects, fence=EARLY).update_or_create({"cents": 9}, currency="CHF"))
    assert [("CHF", 8, LATE), ("USD", 103, LATE)] == rows()

    # Of several rows those of a later run are left, and it is told, also in a transaction.
    Rate.objects.create(currency="JPY")
    with transaction.atomic():
        refused(lambda: fenced(Rate.objects.all(), fence=EARLY).update(cents=5))
    assert [("CHF", 8, LATE), ("JPY", 5, EARLY), ("USD", 103, LATE)] == rows()

def in_thread(write):
    try:
        write()
    except StaleFence:
        return "refused"
    finally:
        connections.close_all()

def at_once():
    for number in range(10):
        start = threading.Barrier(3)
        def write(fence):
            start.wait(10)
            rate = fenced(Rate.objects, fence=fence)
            rate.update_or_create({"cents": fence - EARLY}, currency=f"{number:03}")
        with ThreadPoolExecutor(3) as threads:
            done = [threads.submit(in_thread, partial(write, fence)) for fence in (LATE, EARLY, EARLY)]
            for one in done:
                one.result(30)
    written = Rate.objects.filter(currency__startswith="0").values_list("cents", "fence")
    assert [(1, LATE)] * 10 == list(written)

def snapshot():
    "What a transaction saw when it began does not count."
    usd = Rate.objects.filter(currency="USD")
    usd.update(fence=EARLY - 1)
    with transaction.atomic(), ThreadPoolExecutor(1) as thread:
        assert EARLY - 1 == usd.get().fence
        thread.submit(in_thread, fenced(usd, fence=LATE).update).result(30)
        refused(fenced(usd, fence=EARLY).update)

def joined():
    "Rows that are found by another table's are compared when they are written, not when they are found."
    Rate.objects.filter(currency="USD").update(fence=EARLY - 1)
    beside = create_engine(url)
    ours = fenced(Rate.objects.filter(bank__name="ours"), fence=EARLY)
    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            fenced(Rate.objects.filter(currency="USD"), fence=LATE).update(cents=103)
            early = thread.submit(in_thread, lambda: ours.update(cents=1))
            wait_until(lambda: early.done() or waits(beside))
        assert "refused" == early.result(30)
    assert (103, LATE) == Rate.objects.values_list("cents", "fence").get(currency="USD")

try:
    story()
    at_once()
    if engine != "sqlite3":
        snapshot()
        joined()
finally:
    with connection.schema_editor() as editor:
        editor.delete_model(Rate)
        editor.delete_model(Bank)
print("all refused that had to be")
"""


@pytest.mark.parametrize("kind", ["sqlite", *DATABASES])
def test_django(kind, request, processes, tmp_path):
    pytest.importorskip("django")
    url = (
        f"sqlite:///{tmp_path / 'django.db'}" if kind == "sqlite"
        else request.getfixturevalue(f"{kind}_server").url()
    )  # fmt: skip
    done = processes.python("-c", ON_DJANGO, url, env={"DJANGO_SETTINGS_MODULE": None, "PYTHONPATH": ROOT})
    assert done.wait(60) == 0, done.tail()
    assert "all refused that had to be" in done.output
