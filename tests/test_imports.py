"""Imports point down, as the rooms of the house lie: ground, stores, runtime, faces."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / 'anarchon_celery'
ROOMS = [  # from the ground up; a new module gets its room here
    'errors durations slots wallclock daily forecast protocol youth ledger floors turns claiming holding'
    ' transitions folding trust patience requests logged endpoints',
    'stores',
    'config crontexts moments zones sun chain clockwork schedules entries plan portions events headers drafts'
    ' dispatch dispatcher scheduler decorators methods origins native interrupting verdicts lease board seat'
    ' keeper children agenda parent exits overrides returning unknown task worker fencing embedded results'
    ' unsupervised arguments presence signals outage measures tally relay alarm stopping',
    '__init__ cli desk completing printing health status steering asking doctor show metrics gauges django'
    ' testing',
]
FACES = {'click', 'django', 'prometheus_client', 'rich'}
CELERY = {'billiard', 'celery', 'kombu', 'vine'}
BARRED = [  # by room: what is not brought into it from outside
    FACES | CELERY | {'redis', 'sqlalchemy', 'random', 'socket', 'time'},
    FACES | CELERY,
    FACES,
    set(),
]
AT_NEED = {'fencing imports django'}  # of a model's rows, which who has no Django cannot give it
FLOOR = {module: floor for floor, room in enumerate(ROOMS) for module in room.split()}
MODULES = {
    '.'.join(path.relative_to(PACKAGE).with_suffix('').parts).removesuffix('.__init__'): path
    for path in sorted(PACKAGE.rglob('*.py'))
}


def floor(module: str) -> int:
    return FLOOR.get(module.split('.')[0], len(ROOMS) - 1)


def imports(path: Path, *, at_import: bool = False) -> Iterator[str]:
    """Yield what a file imports: a module of ours as ``stores.redis``, one of others as ``!redis``."""
    tree = ast.parse(path.read_text())
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (resolved(alias.name.split('.')) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = ['anarchon_celery', *path.relative_to(PACKAGE).parts][: -node.level] if node.level else []
            origin = [*here, *(node.module.split('.') if node.module else [])]
            yield from (resolved([*origin, alias.name]) for alias in node.names)


def resolved(parts: list[str]) -> str:
    if parts[0] != 'anarchon_celery':
        return f'!{parts[0]}'
    while len(parts) > 1 and '.'.join(parts[1:]) not in MODULES.keys() | FLOOR.keys():
        parts = parts[:-1]  # a name inside a module
    return '.'.join(parts[1:]) or '__init__'


def test_every_module_has_a_room():
    assert [] == sorted({module.split('.')[0] for module in MODULES} - FLOOR.keys())


def test_imports_point_down():
    up = [
        f'{module} imports {name.strip("!")}'
        for module, path in MODULES.items()
        for name in imports(path)
        if (name[1:] in BARRED[floor(module)] if name[0] == '!' else floor(name) > floor(module))
    ]
    assert AT_NEED == {*up}
    assert '!django' not in {*imports(MODULES['fencing'], at_import=True)}


def test_imports_go_in_no_circle():
    graph = {module: {*imports(path, at_import=True)} - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the circle
