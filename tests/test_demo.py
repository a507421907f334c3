"""The demo plays the quick start, and says the truth about it; and it leaves nothing behind."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from anarchon_celery.protocol import Run
from anarchon_celery.slots import iso
from example_project.demo.stage import Line
from example_project.demo.story import Interruption, Told
from example_project.demo.verdict import differences
from tests.processes import wait_until

ROOT = Path(__file__).parents[1]
RUN = r'report @ \S+Z'

# What it says, in this order.
STORY = [
    'Three nodes start',
    r'started as \S+:\d+ \(store sqlite:///\S+jobs\.db, \d jobs, lease 6 s\)',
    rf'{RUN}: started on \w@\S+:\d+ \(attempt 1, ',
    r'sync @ \S+Z: dispatched by \S+:\d+ \(attempt 1, scheduled\)',
    r'All three looked at sync @ \S+Z: beat \w won it',
    rf'Node \w runs {RUN}\. It is stopped',
    rf'{RUN}: interrupted after \d+ ms, handed over to another instance',
    rf'{RUN}: started on \w@\S+:\d+ \(attempt 2, takeover\)',
    rf'{RUN} was handed over: [\d.]+ s after the stop \S+ started it, as attempt 2',
    r'Node \w is started again',
    rf'Node \w runs {RUN}\. It is killed',
    r'Its beat, process \d+, saw that and stopped',
    rf'{RUN}: started on \w@\S+:\d+ \(attempt 2, takeover\)',
    rf'[\d.]+ s after the kill \S+ started {RUN} again',
    'What the store recorded:',
    r'  report  \S+Z  succeeded +2 \(takeover\) +0 ',
    r'  report  \S+Z  succeeded +2 \(takeover\) +1 ',
    r'As told: each of \d+ slots of sync was won and run once',
    r'exit status 0\.',
]


@pytest.fixture
def demo(processes, tmp_path):
    """Start a demo that puts its folder into ours."""
    place = tmp_path / 'tmp'
    place.mkdir()

    def start(*words):
        env = {'TMPDIR': str(place), 'REDIS_URL': None}
        return processes.python('-m', 'example_project.demo', *words, cwd=ROOT, env=env, name='demo')

    start.place = place
    return start


def left_in(place):
    """What a demo left: files, and processes that know of its folder."""
    mark = f'{place}/'.encode()
    found = [str(path) for path in place.iterdir()]
    for environ in Path('/proc').glob('[0-9]*/environ'):
        try:
            if mark in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:  # it ended meanwhile
            continue
    return found


def nothing_is_left_in(place):
    wait_until(lambda: not left_in(place), why=lambda: str(left_in(place)))


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_it_plays_the_quick_start(demo):
    playing = demo('--no-color')
    assert playing.wait(200) == 0, playing.output
    at = 0
    for line in STORY:
        found = re.compile(line, re.MULTILINE).search(playing.output, at)
        assert found, f'{line!r} is missing after {playing.output[:at][-400:]!r}'
        at = found.end()
    took = re.search(r'(\d+) s, exit status 0', playing.output)
    assert int(took[1]) <= 120
    nothing_is_left_in(demo.place)


@pytest.mark.cluster
def test_ctrl_c_leaves_nothing(demo):
    playing = demo()
    playing.wait_for(rf'{RUN}: started on', 60)
    assert left_in(demo.place)
    playing.signal(signal.SIGINT)
    assert playing.wait(20) == 130, playing.tail()
    assert 'SIGINT: the demo ends here.' in playing.output
    nothing_is_left_in(demo.place)


@pytest.mark.cluster
def test_sigterm_leaves_nothing_on_redis_either(demo, redis_url):
    playing = demo('--redis', redis_url)
    playing.wait_for(rf'{RUN}: started on', 60)
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize()
        playing.signal(signal.SIGTERM)
        assert playing.wait(20) == 143, playing.tail()
        assert client.dbsize() == 0
    nothing_is_left_in(demo.place)


def test_a_store_that_is_not_there_is_said_in_one_line(demo):
    playing = demo('--redis', 'redis://127.0.0.1:1/0')
    assert playing.wait(30) == 1, playing.tail()
    assert 'The story cannot go on: ' in playing.output
    assert 'Traceback' not in playing.output
    nothing_is_left_in(demo.place)


# What it compares ----------------------------------------------------------------------------------

T = 1_800_000_000_000  # a slot of both jobs


def sync(number, **other):
    slot = T + 10_000 * number
    usual = {'state': 'succeeded', 'attempt': 1, 'fence': slot, 'owner': 'a@host:1', 'started_at': slot + 50}
    return Run(job='sync', slot=slot, **{**usual, **other})


def report(number, took, crashes, state='succeeded'):
    slot = T + 30_000 * number
    return Run(
        job='report', slot=slot, state=state, trigger='takeover', dispatch=2, attempt=2,
        crashes=crashes, fence=200 + 100 * number, owner='b@host:2', started_at=slot + 1_000 + took,
    )  # fmt: skip


STOPPED, KILLED = report(0, 1_500, 0), report(1, 6_500, 1)
SYNCS = [sync(number) for number in range(4)]
TOLD = Told(
    all_up=T,
    last=T + 30_000,
    stopped=Interruption(STOPPED.key, 'a', T + 1_000, 150),
    killed=Interruption(KILLED.key, 'a', T + 31_000, 250),
)
LINES = [
    Line('a', 'sync', run.slot, what)
    for run in SYNCS
    for what in ('dispatched by h:1 (attempt 1, scheduled)', 'started on a@h:2 (attempt 1, scheduled)')
]


def test_a_true_story_has_no_differences():
    assert [] == list(differences(TOLD, [*SYNCS, STOPPED, KILLED], LINES))


@pytest.mark.parametrize(
    ('runs', 'said'),
    [
        ([*SYNCS[:2], *SYNCS[3:], STOPPED, KILLED], 'should have one run'),  # a slot was lost
        ([*SYNCS[:3], sync(3, state='skipped'), STOPPED, KILLED], 'should have one run'),
        ([*SYNCS[:3], sync(3, dispatch=2), STOPPED, KILLED], 'should have one run'),
        ([*SYNCS, KILLED], 'should have succeeded elsewhere'),
        ([*SYNCS, STOPPED], 'should have succeeded elsewhere'),
        ([*SYNCS, replace(STOPPED, attempt=1), KILLED], 'as attempt 2 with 0 crashes'),
        ([*SYNCS, replace(STOPPED, crashes=1), KILLED], 'as attempt 2 with 0 crashes'),
        ([*SYNCS, replace(STOPPED, owner='a@host:1'), KILLED], 'should have succeeded elsewhere'),
        ([*SYNCS, replace(STOPPED, fence=149), KILLED], 'a fence above 150'),
        ([*SYNCS, report(0, 2_001, 0), KILLED], '2.00 s after the stop, not within 2 s'),
        ([*SYNCS, STOPPED, replace(KILLED, crashes=0)], 'as attempt 2 with 1 crashes'),
        ([*SYNCS, STOPPED, report(1, 4_000, 1)], '4.00 s after the kill, not 5 to 9 s'),
        ([*SYNCS, STOPPED, report(1, 9_500, 1)], '9.50 s after the kill, not 5 to 9 s'),
        ([*SYNCS, replace(STOPPED, fence=300), replace(KILLED, fence=299)], 'fences of report do not grow'),
        ([*SYNCS, STOPPED, KILLED, report(2, 0, 3, state='abandoned')], 'abandoned'),
    ],
)
def test_what_differs_is_said(runs, said):
    found = list(differences(TOLD, runs, LINES))
    assert 1 == len(found), found
    assert said in found[0]


@pytest.mark.parametrize('what', ['dispatched by h:9', 'started on c@h:9'])
def test_two_winners_of_a_slot_are_said(what):
    lines = [*LINES, Line('c', 'sync', T, f'{what} (attempt 1, scheduled)')]
    (found,) = differences(TOLD, [*SYNCS, STOPPED, KILLED], lines)
    assert f'sync @ {iso(T)} should be' in found
