"""The memory that a worker's parent shares with its children, written and read by real processes."""

import os
import signal
import subprocess
import sys

import pytest

from anarchon_celery import board
from anarchon_celery.board import Full
from tests.processes import wait_until


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setenv(board.WHERE, '')
    return board.make()


def child(code: str, **how) -> subprocess.Popen:
    """A process that finds the board of this one."""
    code = f'from anarchon_celery import board\nfound = board.find()\n{code}'
    return subprocess.Popen([sys.executable, '-c', code], **how)


def printed_by(code: str) -> str:
    with child(code, stdout=subprocess.PIPE, text=True) as process:
        return process.communicate()[0]


def test_a_child_and_its_parent_read_what_the_other_wrote(made):
    made.place(7).answer({'renewed_at': 12.5})
    made.stop()
    code = 'found.place(7).write({"holds": "report"}); print(found.place(7).heard(), found.stopping)'
    assert "{'renewed_at': 12.5} True\n" == printed_by(code)
    assert [7] == [place.index for place in made.taken()]
    assert {'holds': 'report'} == made.place(7).read()


def test_nothing_is_said_at_first_and_after_it_is_wiped(made):
    place = made.place(0)
    assert (None, None, []) == (place.read(), place.heard(), [*made.taken()])
    place.write({'holds': 'report'})
    place.write(None)
    assert (None, []) == (place.read(), [*made.taken()])


def test_places_are_apart(made):
    for index in range(board.PLACES):
        made.place(index).write({'index': index})
        made.place(index).answer({'to': index})
    assert [*range(board.PLACES)] == [place.read()['index'] for place in made.taken()]
    assert [*range(board.PLACES)] == [place.heard()['to'] for place in made.taken()]
    assert made.place(board.PLACES) is None
    assert made.place(-1) is None


def test_what_is_too_long_is_refused_and_what_was_said_stays(made):
    place = made.place(0)
    place.write({'job': 'ü' * 4000})
    with pytest.raises(Full):
        place.write({'job': 'ü' * 8000})
    assert {'job': 'ü' * 4000} == place.read()


def test_a_reader_sees_one_text_or_the_other_while_it_is_written(made):
    process = child('''if True:
        for n in range(20_000):
            found.place(0).write({"n": n, "text": "x" * (n % 900)})
    ''')
    seen = set()
    while process.poll() is None:
        if said := made.place(0).read():
            assert said['n'] % 900 == len(said['text'])
            seen.add(said['n'])
    assert len(seen) > 10
    assert 19_999 == made.place(0).read()['n']


def test_a_writer_that_is_killed_leaves_a_whole_text(made):
    for _ in range(5):
        process = child('''if True:
            n = 0
            while True:
                n += 1
                found.place(0).write({"n": n, "text": "x" * (n % 900)})
        ''')
        wait_until(lambda: made.place(0).taken)
        process.kill()
        assert -signal.SIGKILL == process.wait()
        said = made.place(0).read()
        assert said['n'] % 900 == len(said['text'])
        made.place(0).write(None)


def test_it_is_not_that_of_another_parent(made):
    grandchild = '''if True:
        import subprocess, sys
        code = "from anarchon_celery import board; print(board.find())"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")
    '''
    assert 'None\n' == printed_by(grandchild)
    assert os.getpid() == made.parent


@pytest.mark.parametrize('where', [None, '', '/nowhere/to/be/found', '/proc/self/fd/0'])
def test_where_there_is_none_none_is_found(monkeypatch, where):
    monkeypatch.delenv(board.WHERE, raising=False)
    if where is not None:
        monkeypatch.setenv(board.WHERE, where)
    assert board.find() is None


def test_where_memory_needs_a_name_it_goes_with_its_maker(tmp_path):
    code = f'''if True:
        import os, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        del os.memfd_create
        board.make().place(1).write({{"holds": "report"}})
        import subprocess, sys
        code = "from anarchon_celery import board; print(board.find().place(1).read())"
        print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout, end="")
        print(len(os.listdir({str(tmp_path)!r})))
    '''
    assert "{'holds': 'report'}\n1\n" == printed_by(code)
    assert [] == [*tmp_path.iterdir()]


@pytest.mark.parametrize('without', ['del os.memfd_create', 'os.path.exists = lambda path: False'])
def test_a_named_one_stays_until_its_maker_ends_and_no_file_is_left_open(tmp_path, without):
    """Where there is no such memory, or none that other processes find."""
    code = f'''if True:
        import os, sys, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        before = len(os.listdir("/proc/self/fd"))
        {without}
        made = board.make()
        print(len(os.listdir("/proc/self/fd")) - before, flush=True)  # one for the file, one for its memory
        if not (child := os.fork()):
            sys.exit()  # as a child of a pool ends, with all that it took over
        assert (child, 0) == os.waitpid(child, 0)
        print(os.listdir({str(tmp_path)!r}) == [os.path.basename(os.environ[board.WHERE])])
    '''
    assert '2\nTrue\n' == printed_by(code)
    assert [] == [*tmp_path.iterdir()]


def test_what_was_spoiled_is_as_nothing(made):
    """Its text and its checksum do not fit: nobody acts upon what nobody wrote."""
    place = made.place(3)
    place.write({'holds': 'report'})
    at = made._memory.find(b'report')
    made._memory[at : at + 3] = b'REP'
    assert (None, [3]) == (place.read(), [place.index for place in made.taken()])
    place.write({'holds': 'sync'})
    assert {'holds': 'sync'} == place.read()
