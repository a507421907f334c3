"""What is typed after ``python -m tests.…`` and cannot be meant: argparse's own error, and status 2."""

from __future__ import annotations

import pytest

from tests.chaos.__main__ import main as chaos
from tests.crash_points.__main__ import main as crash_points
from tests.fuzz.__main__ import main as fuzz
from tests.model.__main__ import main as model
from tests.model.scenes import SCENES
from tests.simulation.__main__ import main as simulation

NUMBERS = 'numbers with commas between are right, such as 3,17'
COUNT = 'a whole number from 1 on is right'
SECONDS = 'seconds from 0 on are right'


@pytest.mark.parametrize(
    ('tool', 'words', 'line'),
    [
        (simulation, '--seed 1 --only x', f"argument --only: 'x': {NUMBERS}"),
        (simulation, '--seed 1 --only 3,', f"argument --only: '3,': {NUMBERS}"),
        (simulation, '--only 3', '--only goes with --seed: faults have their numbers in that seed'),
        (simulation, '--seeds -1', f"argument --seeds: '-1': {COUNT}"),
        (simulation, '--seeds 0', f"argument --seeds: '0': {COUNT}"),
        (simulation, '-j 0', f"argument -j: '0': {COUNT}"),
        (chaos, '--read /nonexistent', "argument --read: '/nonexistent': there is no such file"),
        (chaos, '--seconds -1', f"argument --seconds: '-1': {SECONDS}"),
        (chaos, '--seconds nan', f"argument --seconds: 'nan': {SECONDS}"),
        (chaos, '--jobs 0', f"argument --jobs: '0': {COUNT}"),
        (crash_points, '--all --sample -1', f"argument --sample: '-1': {COUNT}"),
        (crash_points, '--all -j x', f"argument -j: 'x': {COUNT}"),
        (fuzz, '--seconds x', f"argument --seconds: 'x': {SECONDS}"),
        (model, '-j 0', f"argument -j: '0': {COUNT}"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_an_error_of_argparse(tool, words, line, capsys):
    assert 2 == status(tool, words.split())
    assert capsys.readouterr().err.endswith(f' error: {line}\n')


def test_the_scenes_are_listed_where_a_wrong_one_is_given(capsys):
    assert 2 == status(model, ['--scene', 'x'])
    said = capsys.readouterr().err
    assert [f'  {name}' for name in SCENES] == said.splitlines()[-len(SCENES) :]
    assert said.partition('error: ')[2].startswith("argument --scene: 'x' is none of the scenes:\n")


def test_the_help_of_the_model_names_no_scene(capsys):
    assert 0 == status(model, ['--help'])
    said = capsys.readouterr().out
    assert '--scene SCENE' in said
    assert [] == [name for name in SCENES if name in said]


def status(tool, words: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        tool(words)
    return ended.value.code
