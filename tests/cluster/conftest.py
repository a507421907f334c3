import pytest

from tests.cluster.cluster import Cluster, file_broker


@pytest.fixture
def redis_cluster(processes, tmp_path, own_redis_server):
    """Make a cluster on a Redis of its own: database 0 is the store, 1 the broker."""
    made = []

    def make(schedule, **conf):
        broker = {'broker_url': own_redis_server.url(1)}
        cluster = Cluster(processes, tmp_path, schedule, store=own_redis_server.url(0), broker=broker, **conf)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def rabbitmq_cluster(processes, tmp_path, own_redis_server, rabbitmq_url):
    """Make a cluster on RabbitMQ as broker, with a Redis of its own as store."""
    made = []

    def make(schedule, **conf):
        broker = {'broker_url': rabbitmq_url}
        cluster = Cluster(processes, tmp_path, schedule, store=own_redis_server.url(0), broker=broker, **conf)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def file_cluster(processes, tmp_path):
    """Make a cluster without any server: a SQLite file is the store, a folder the broker."""
    made = []

    def make(schedule, **conf):
        store = f'sqlite:///{tmp_path / "store.db"}'
        cluster = Cluster(processes, tmp_path, schedule, store=store, broker=file_broker(tmp_path), **conf)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.close()
