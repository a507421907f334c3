"""The judge of the chaos finds what is broken: a history that is right, and each rule broken in turn."""

import json

import pytest

from tests.chaos import __main__ as command
from tests.chaos.judging import RULES, violations
from tests.chaos.lateness import nothing_is_overdue, soon_enough
from tests.chaos.told import Told

BEGIN = 1_800_000_000_000  #: ms, at monotonic 100
JOB, LOOKS, ALL = 'skip-latest-deaf-00', 'skip-none-looks-01', 'allow-all-looks-02'


def at(ms):
    return 100 + (ms - BEGIN) / 1000


def fence(ms):
    return ms * 1000


def body(job, slot, began, event, *, later, attempt=1, trusts=True, node='worker-1', main=11, pid=21):
    return {
        'what': 'body', 'at': at(began + later), 'event': event, 'job': job, 'slot': slot,
        'attempt': attempt, 'fence': fence(began), 'trusts': trusts, 'node': node, 'main': main, 'pid': pid,
        'trigger': 'scheduled',
    }  # fmt: skip


def said(event, job, slot, ms, *, node='beat-1', main=1, **fields):
    return {
        'what': 'said', 'event': event, 'job': job, 'slot': slot, 'at': at(ms), 'node': node, 'main': main,
        **fields,
    }  # fmt: skip


def claimed(job, slot, after=10, **fields):
    return said('slot_claimed', job, slot, slot + after, **fields)


def sent(job, slot, after=20, *, dispatch=1, attempt=1, **fields):
    return said('run_dispatched', job, slot, slot + after, dispatch=dispatch, attempt=attempt, **fields)


def write(job, began, which):
    return {'what': 'write', 'at': 0, 'resource': f'{which} {job}', 'fence': fence(began)}


def ended(job, slot, began, **fields):
    return {
        'what': 'run', 'at': 0, 'job': job, 'slot': slot, 'kind': 'scheduled', 'state': 'succeeded',
        'dispatch': 1, 'attempt': 1, 'fence': fence(began), 'finished_at': began + 500, 'claimed_at': slot,
        'started_at': began, **fields,
    }  # fmt: skip


def run(job, slot, began):
    """One that nothing happened to, of half a second."""
    lines = [claimed(job, slot), sent(job, slot)]
    lines += [body(job, slot, began, 'start', later=5), body(job, slot, began, 'wrote', later=400)]
    lines += [body(job, slot, began, 'end', later=450), ended(job, slot, began)]
    return [*lines, write(job, began, 'unchecked'), write(job, began, 'checked')]


def history(*, jobs=(JOB, LOOKS, ALL), slots=10):
    """Ten slots of each job, a worker, two beats; then no more."""
    lines = [
        {'what': 'play', 'at': 90, 'store': 'redis', 'broker': 'redis', 'seed': 1, 'jobs': len(jobs)},
        {'what': 'clock', 'at': 90, 'wall': BEGIN / 1000 - 10},
        *({'what': 'ready', 'at': 95, 'node': node, 'main': main} for node, main in
          (('beat-1', 1), ('beat-2', 2), ('worker-1', 11), ('worker-2', 12))),
    ]  # fmt: skip
    for slot in range(BEGIN, BEGIN + 1000 * slots, 1000):
        for job in jobs:
            lines += run(job, slot, slot + 100)
    end = BEGIN + 1000 * slots
    lines += [looked(end), {'what': 'no more slots', 'at': at(end)}, looked(end + 1000)]
    return [*lines, {'what': 'end', 'at': 0}]


def looked(ms, *runs):
    return {'what': 'active', 'at': at(ms), 'now': ms, 'runs': list(runs)}


def fault(kind, begin, end, *, target='worker', nodes=('worker-1',), mains=(11,), number=1, **notes):
    return [
        {'what': 'fault', 'at': at(begin), 'number': number, 'kind': kind, 'target': target,
         'nodes': list(nodes), 'mains': list(mains)},
        {'what': 'over', 'at': at(end), 'number': number, 'notes': notes},
    ]  # fmt: skip


def takeover(slot, *, killed, again, began, job=JOB):
    """Attempt 1 of a run is killed, and attempt 2 is begun on another worker."""
    return [
        claimed(job, slot), sent(job, slot),
        body(job, slot, slot + 100, 'start', later=5),
        *fault('kill worker group', killed, killed + 1500),
        sent(job, slot, again - slot, dispatch=2, attempt=2),
        body(job, slot, began, 'start', later=5, attempt=2, node='worker-2', main=12, pid=22),
        body(job, slot, began, 'end', later=450, attempt=2, node='worker-2', main=12, pid=22),
        ended(job, slot, began, attempt=2, dispatch=2),
        write(job, began, 'checked'),
    ]  # fmt: skip


LAST = BEGIN + 9000


def without(lines, *, slot=LAST, job=JOB):
    return [line for line in lines if (line.get('job'), line.get('slot')) != (job, slot)]


def judge(lines):
    return {line.partition(':')[0] for line in violations(Told(lines))}


def test_what_is_right_is_found_right():
    assert judge(history()) == set()


def broken_slot_without_record(lines):
    return without(lines, slot=BEGIN + 3000)


def broken_success_without_a_body(lines):
    return [line for line in lines if (line.get('event'), line.get('slot')) != ('end', BEGIN + 3000)]


def broken_still_active(lines):
    return [*lines, looked(LAST + 60_000, [JOB, LAST, 'queued', LAST])]


def broken_skipped_though_allowed(lines):
    return [*without(lines, job=ALL), ended(ALL, LAST, LAST, state='skipped')]


def broken_published_only(lines):
    return [*without(lines), ended(JOB, LAST, LAST, state='published')]


def broken_claimed_anew(lines):
    return [*lines, claimed(JOB, LAST, 700, node='beat-2', main=2)]


def broken_sent_twice(lines):
    return [*lines, sent(JOB, LAST, 700, node='beat-2', main=2)]


def broken_trust_overlaps(lines):
    """The one that was taken over still trusts its lease."""
    took = takeover(LAST, killed=LAST + 200, again=LAST + 2300, began=LAST + 2400)
    return [*without(lines), *took, body(JOB, LAST, LAST + 100, 'works', later=2400)]


def broken_trust_overlaps_in_the_job(lines):
    return [*lines, body(JOB, BEGIN, BEGIN + 100, 'works', later=2400)]


def broken_fence_twice(lines):
    return [*lines, body(JOB, LAST, LAST + 100, 'start', later=5, node='worker-2', main=12)]


def broken_fence_of_another(lines):
    return [*lines, body(JOB, LAST, BEGIN + 100, 'start', later=9005, attempt=2)]


def broken_stale_write_taken(lines):
    return [*lines, write(JOB, BEGIN + 100, 'checked')]


def broken_doubled_for_nothing(lines):
    took = takeover(LAST, killed=LAST + 200, again=LAST + 2300, began=LAST + 2400)
    return [*without(lines), *(line for line in took if line['what'] not in ('fault', 'over'))]


def broken_doubled_by_a_clock(lines):
    took = takeover(LAST, killed=LAST + 200, again=LAST + 2300, began=LAST + 2400)
    return [*without(lines), *({**line, 'kind': 'wall clock'} for line in took)]


def broken_missed_though_all_were_there(lines):
    return [*without(lines), ended(JOB, LAST, LAST, state='missed', until=LAST)]


def broken_too_many_crashes(lines):
    return [*without(lines), ended(JOB, LAST, LAST, state='abandoned', crashes=4)]


def broken_abandoned_too_early(lines):
    abandoned = ended(JOB, LAST, LAST, state='abandoned', crashes=1)
    return [*without(lines), said('run_abandoned', JOB, LAST, LAST + 500), abandoned]


def broken_abandoned_in_silence(lines):
    return [*without(lines), ended(JOB, LAST, LAST, state='abandoned', crashes=3)]


def broken_caught_up_under_none(lines):
    """No beat is there for fifteen seconds, and what came due at their beginning is run at their end."""
    begin, end = LAST + 2000, LAST + 17_000
    away = fault('no beat', begin, end, target='beats', nodes=('beat-1', 'beat-2'), mains=(1, 2))
    late = [
        {**line, 'at': at(end)}
        if line.get('event') == 'slot_claimed' and begin < line['slot'] < end
        else line
        for line in history(slots=40)
    ]  # fmt: skip
    return [*late, *away]


def broken_ended_by_itself(lines):
    return [*lines, {'what': 'died', 'at': 105, 'node': 'beat-1', 'status': 1}]


def broken_never_ready(lines):
    stuck = {'what': 'stuck', 'at': 105, 'number': 1, 'step': 3}
    return [*lines, *fault('kill beat', BEGIN, BEGIN + 1), stuck]


def broken_claimed_below_the_floor(lines):
    floors = {'what': 'floors', 'at': at(BEGIN), 'floors': {JOB: LAST}}
    return [*lines, floors]


def broken_floor_sank(lines):
    floors = [
        {'what': 'floors', 'at': at(BEGIN) + n, 'floors': {LOOKS: BEGIN - 1000 * n - 60_000}} for n in (0, 1)
    ]  # fmt: skip
    return [*lines, *floors]


BROKEN = {
    'nodes_live': [broken_ended_by_itself, broken_never_ready],
    'each_slot_ends': [
        broken_slot_without_record, broken_success_without_a_body, broken_still_active,
        broken_skipped_though_allowed, broken_published_only,
    ],
    'one_winner': [broken_claimed_anew, broken_sent_twice],
    'leases_do_not_overlap': [broken_trust_overlaps, broken_trust_overlaps_in_the_job],
    'fences_grow': [broken_fence_twice, broken_fence_of_another, broken_stale_write_taken],
    'untouched_once': [
        broken_doubled_for_nothing, broken_doubled_by_a_clock, broken_missed_though_all_were_there,
    ],
    'crashes_are_counted': [broken_too_many_crashes, broken_abandoned_too_early, broken_abandoned_in_silence],
    'catch_up_is_as_asked': [broken_caught_up_under_none],
    'floors_hold': [broken_claimed_below_the_floor, broken_floor_sank],
}  # fmt: skip


def test_each_rule_is_broken_here():
    assert {rule.__name__ for rule in RULES} == BROKEN.keys()


@pytest.mark.parametrize(
    ('rule', 'broken'), [(rule, broken) for rule, all_of_them in BROKEN.items() for broken in all_of_them]
)
def test_what_breaks_a_rule_is_found(rule, broken):
    assert rule in judge(broken(history()))


def test_a_takeover_breaks_no_rule():
    took = takeover(LAST, killed=LAST + 200, again=LAST + 2300, began=LAST + 2400)
    told = Told([*without(history()), *took])
    assert [] == violations(told)
    assert [] == list(soon_enough(told))


def test_a_takeover_that_comes_late_is_found():
    took = takeover(LAST, killed=LAST + 200, again=LAST + 3400, began=LAST + 3500)
    (line,) = soon_enough(Told([*without(history()), *took]))
    assert 'skip-latest-deaf-00 @ 2027-01-15T08:00:09.000Z attempt 2 was sent' in line
    assert 'at most 3.0 s, and 0.00 s slack' in line


def test_what_the_machine_took_is_slack():
    took = takeover(LAST, killed=LAST + 200, again=LAST + 3400, began=LAST + 3500)
    starved = {'what': 'starved', 'at': at(LAST + 1000), 'node': 'beat-1', 'main': 1, 'seconds': 0.3}
    assert [] == list(soon_enough(Told([*without(history()), *took, starved])))


def test_what_is_overdue_at_rest_is_found():
    rest = [{'what': 'rest', 'at': at(LAST)}, {'what': 'rested', 'at': at(LAST + 12_000)}]
    late = looked(LAST + 10_000, [JOB, LAST, 'queued', LAST + 8000])
    early = looked(LAST + 11_000, [JOB, LAST, 'queued', LAST + 10_500])
    (line,) = nothing_is_overdue(Told([*history(), *rest, late, early]))
    assert 'is queued, 2.00 s past its deadline' in line


def test_a_store_that_forgot_suspends_rules_for_what_it_touched_and_for_nothing_else():
    forgot = fault('replica promoted', BEGIN + 500, BEGIN + 1000, target='store', nodes=(), mains=())
    anew = claimed(JOB, BEGIN + 1000, 800, node='beat-2', main=2)
    assert set() == judge([*history(slots=20), anew, *forgot])
    later = claimed(JOB, BEGIN + 15_000, 800, node='beat-2', main=2)
    assert {'one_winner'} == judge([*history(slots=20), later, *forgot])


def test_a_history_is_read_and_judged_by_the_command(tmp_path, capsys):
    file = tmp_path / 'history'
    file.write_text(''.join(json.dumps(line) + '\n' for line in history()))
    assert 0 == command.main(['--read', str(file)])
    assert '30 slots: 30 succeeded' in capsys.readouterr().out
    with file.open('a') as lines:
        lines.write(json.dumps(write(JOB, BEGIN + 100, 'checked')) + '\n')
    assert 1 == command.main(['--read', str(file)])
    assert 'fences_grow: skip-latest-deaf-00: the write of fence' in capsys.readouterr().out
