"""Settings at random: one line that names the setting, or a value that can be worked with."""

from __future__ import annotations

from celery import Celery
from hypothesis import strategies as st

from anarchon_celery.config import OPTIONS, SETTINGS, Config, policy_of
from anarchon_celery.errors import SettingError, StoreError
from tests.fuzz.values import ANY, TEXTS

#: The names there are, one that is nearly one, and any.
NAMES = st.sampled_from([*SETTINGS, 'leese', '', 'Store', 'store_url']) | st.text('abc_\u00e9\n', max_size=5)

#: Nearly right.
URLS = st.builds(
    '{}{}{}'.format,
    st.sampled_from(
        [
            'redis',
            'rediss',
            'sqlite',
            'postgresql',
            'mysql',
            'sentinel',
            'unix',
            'valkey',
            'redis+cluster',
            'memory',
            'reddis',
            '',
        ]
    ),
    st.sampled_from(['://', ':///', ':', '//', '']),
    st.sampled_from(
        [
            'localhost',
            ':secret@host:6379/0',
            'user:secret@[::1',
            'host:port',
            '/tmp/x.db',
            '?a=b',
            '%zz@',
            'h:1;sentinel://h:2',
        ]
    )
    | TEXTS,
)


STORES = URLS | ANY
KEYS = st.sampled_from([*OPTIONS, 'leese']) | TEXTS
OWN = st.dictionaries(KEYS, ANY, max_size=3) | ANY
LIMITS = st.none() | st.integers(0, 2**40) | st.floats()


def one_line(said: object) -> str:
    """What was said is one line for a person, of a length that is read."""
    text = str(said)
    assert text
    assert 1 == len(text.splitlines()), text
    assert len(text) < 2_000, len(text)
    return text


def settings_at_random(data: st.DataObject) -> None:
    """Any settings: a Config whose store is a store or says why not, or a line that names a setting."""
    names = data.draw(st.lists(NAMES, min_size=1, max_size=3, unique=True), 'settings')
    found = {f'anarchon_{name}': data.draw(STORES if 'store' in name else ANY, name) for name in names}
    app = Celery('fuzz', broker='memory://', set_as_current=False)
    try:
        app.conf.update(found)
        try:
            config = Config.of(app)
        except SettingError as refused:
            said = one_line(refused)
            assert 'secret' not in said, said
            assert any(name.split('\n')[0] in said for name in found), said
            return
        assert config.policy.lease > config.policy.heartbeat > 0
        try:
            config.open_store().close()
        except StoreError as refused:
            assert 'secret' not in one_line(refused), refused
    finally:
        app.close()


def policies_at_random(data: st.DataObject) -> None:
    """What one entry says: a policy, or a line that names the entry and the key."""
    own, limit = data.draw(OWN, "options['anarchon']"), data.draw(LIMITS, 'time_limit')
    try:
        policy = policy_of(
            Config('memory://fuzz'), 'report', {'anarchon': own}, time_limit=limit, is_crontab=True
        )
    except SettingError as refused:
        assert one_line(refused).startswith("entry 'report': ")
    else:
        assert policy.lease > policy.heartbeat > 0
