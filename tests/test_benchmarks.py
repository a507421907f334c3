"""The benchmarks: the order of magnitude of a small run, and store calls exactly, as servers count them."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as command
from benchmarks import report, scale
from benchmarks.arena import Arena
from benchmarks.counting import by_verb
from benchmarks.entrants import BARE, CELERY, DJANGO, OURS, OURS_SQL, Courses
from benchmarks.figures import Line, Row, percentile, shown
from benchmarks.probe import interrupted_after

JOBS = 450  # three chunks to register, four portions to claim

slow = pytest.mark.slow


@pytest.fixture(scope='module')
def courses(tmp_path_factory):
    """Our peers are not here: what Celery brings along is."""
    arena = Arena(tmp_path_factory.mktemp('arena'), with_peers=False)
    try:
        yield Courses(arena, 0)
    finally:
        arena.close()


@pytest.fixture(scope='module')
def ran(courses):
    return courses.with_jobs(JOBS, (OURS, OURS_SQL, BARE, CELERY))


@slow
def test_a_start_registers_in_chunks(ran):
    assert {'register': 3, 'expired': 1, 'prune': 1, 'EVAL': 3} == by_verb(ran[OURS].calls['start'])


@slow
def test_what_is_due_is_claimed_and_recorded_in_portions(ran):
    calls = by_verb(ran[OURS].calls['emit'])
    polls = calls.pop('expired', 0)
    assert polls <= 1 + 2 * ran[OURS].emit[0]['seconds'] * JOBS
    assert {'claim': 4, 'sent': 4, 'EVAL': 2} == calls
    assert JOBS == ran[OURS].emitted


@slow
def test_a_portion_takes_as_many_sql_statements_whatever_its_size(ran):
    calls, took = ran[OURS_SQL].calls['emit'], ran[OURS_SQL].emit[0]['seconds'] * JOBS
    assert 4 == calls['INSERT'], 'one for each claim'
    records = 4 * 13 - 6, 4 * 13  # the last may be recorded by the next tick
    assert records[0] <= calls.total() <= records[1] + 5 * (1 + 2 * took), 'claims and records; and polls'


@slow
def test_between_polls_nothing_is_asked(ran):
    course = ran[OURS]
    calls, took = by_verb(course.calls['idle']), course.ticks * course.idle[0]['seconds']
    assert calls.keys() <= {'expired'}
    assert calls.get('expired', 0) <= 1 + took
    assert course.ticks >= 20


@slow
def test_an_emission_takes_less_cpu_than_a_bare_apply_async_and_a_half(ran):
    """It is about half of it; what else runs on the machine can change that, but not so much."""
    ours, bare = ran[OURS].emit[0]['cpu'], ran[BARE].emit[0]['cpu']
    assert ours < 1.15 * bare, f'{ours / bare:.2f} × a bare apply_async'


@slow
def test_an_idle_tick_does_not_look_at_the_jobs(ran):
    ours, celery = ran[OURS].idle[0]['cpu'], ran[CELERY].idle[0]['cpu']
    assert ours < celery / 3, f'{1e6 * ours:.0f} µs, and Celery {1e6 * celery:.0f} µs'


@slow
def test_the_rows_say_who_took_how_many_times_as_long(courses, ran):
    row = scale.emission(courses, JOBS)  # of everybody who is here: nothing runs again
    assert [OURS.who, OURS_SQL.who, BARE.who, CELERY.who] == [line.who for line in row.lines]
    text = report.table([row])
    assert text.startswith(f'one emission, {JOBS} due at once: ')
    assert f'1 ×  {OURS.who}' in text
    assert 1 == row.as_json()['lines'][0]['times_ours']


# Who takes part, and for how long -------------------------------------------------------------------


def test_a_row_says_who_is_not_in_it_and_why():
    courses = Courses(SimpleNamespace(has=lambda who, is_peer: True), 1)
    assert ([], [DJANGO.who]) == (courses.left_out(1_000), courses.left_out(10_000))
    assert [] == Courses(courses.arena, 1, patient=True).left_out(10_000)
    row = Row('start', 'it starts', 'soon', [Line('we', 's', [1])], 'Left out: they')
    assert '  goal: soon\n  Left out: they\n' in report.table([row])


def test_who_takes_too_long_is_interrupted_whatever_it_catches():
    begun = time.monotonic()
    with interrupted_after(0.05):
        while time.monotonic() < begun + 60:
            with suppress(Exception):
                time.sleep(10)
    assert time.monotonic() < begun + 9


# What is made of figures ------------------------------------------------------------------------


def test_a_ratio_is_that_of_each_round_with_its_own():
    ours, theirs = Line('we', 'ms', [1, 10, 2]), Line('they', 'ms', [3, 30, 8])
    assert 3 == theirs.ratio_to(ours)
    assert (8, (3, 30)) == (theirs.median, theirs.spread)


@pytest.mark.parametrize(
    ('value', 'text'),
    [(0, '0'), (0.01234, '0.0123'), (0.5, '0.500'), (9.876, '9.88'), (98.76, '98.8'), (9876.5, '9,876')],
)
def test_figures_have_three_digits(value, text):
    assert text == shown(value)


def test_a_percentile_is_one_of_the_values():
    assert (50, 99) == (percentile(range(100), 0.5), percentile(range(100), 0.99))


def test_the_page_has_what_was_measured_and_nothing_by_hand():
    text = command.PAGE.read_text()
    assert command.page(text, json.loads(command.MEASURED.read_text())) == text


def test_a_row_that_there_is_not_is_told():
    with pytest.raises(SystemExit, match='called first fire times: there are emission, .*walk'):
        command.main(['--only', 'first fire times', '--quick', '--without-peers'])


def test_the_picture_can_be_drawn(tmp_path):
    pytest.importorskip('matplotlib')
    from benchmarks.picture import draw

    def line(who, *values):
        return Line(who, 'ms', list(values))

    sizes = [line(f'{OURS.who}: {size:,} jobs', 1) for size in (100, 1_000)]
    rows = [
        Row('one emission', '', '', [line(OURS.who, 1), line(CELERY.who, 20)]),
        Row('growth: emission', 'by the number of jobs', '', sizes),
    ]
    draw(rows, tmp_path / 'picture.svg')
    assert '20.0 ×' in (tmp_path / 'picture.svg').read_text()


def test_rows_that_are_measured_again_are_put_in_the_place_of_the_old_ones(tmp_path, monkeypatch):
    def row(name, value):
        return Row(name, 'work', 'goal', [Line('ours', 'ms', [value, 2 * value], [1.0], 3.0, 'as told')])

    machine = {'cores': 2, 'load': 0.5}
    file = tmp_path / 'measured.json'
    file.write_text(json.dumps(report.as_json([row('one', 1.0), row('two', 2.0)], 2, machine)))
    monkeypatch.setattr(command, 'MEASURED', file)
    found = [row('two', 4.0), row('three', 6.0)]
    assert [row('one', 1.0), *found] == command._with_others(found, {**machine, 'load': 1.5})
    assert found == command._with_others(found, {**machine, 'cores': 4}), 'of another machine'
