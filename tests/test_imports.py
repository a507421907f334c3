"""Imports point down, as the rooms of the house lie: ground, stores, runtime, faces."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "anarchon_celery"
GROUND = {"errors", "durations", "slots", "protocol"}
RUNTIME = {"config", "schedules", "events", "headers", "dispatch", "scheduler", "lease", "task", "worker", "fencing"}
BARRED = [  # by the floor of the room: what is not brought into it from outside
    {"billiard", "celery", "click", "django", "kombu", "redis", "rich", "sqlalchemy"} | {"random", "socket", "time"},
    {"billiard", "celery", "click", "django", "kombu", "rich"},
    {"click", "django", "rich"},
    set(),
]


def floor(module: str) -> int:
    """Return 0 for the ground, 3 for the faces, which is also where a new module is until it has a room."""
    room = module.split(".")[0]
    return 0 if room in GROUND else 1 if room == "stores" else 2 if room in RUNTIME else 3


def imports(path: Path, *, at_import: bool = False):
    """Yield what a file imports: a module of ours as ``stores.redis``, one of others as ``!redis``."""
    tree = ast.parse(path.read_text())
    for node in tree.body if at_import else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (resolved(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = ["anarchon_celery", *path.relative_to(PACKAGE).parts][: -node.level] if node.level else []
            origin = [*here, *(node.module or "").split(".")] if node.module else here
            yield from (resolved([*origin, alias.name]) for alias in node.names)


def resolved(parts: list[str]) -> str:
    if parts[0] != "anarchon_celery":
        return f"!{parts[0]}"
    while len(parts) > 1 and not (PACKAGE.joinpath(*parts[1:]).with_suffix(".py").exists()):
        if PACKAGE.joinpath(*parts[1:], "__init__.py").exists():
            break
        parts = parts[:-1]
    return ".".join(parts[1:]) or "__init__"


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def test_imports_point_down():
    up = [
        f"{module} imports {name.strip('!')}"
        for module, path in MODULES.items()
        for name in imports(path)
        if (name[1:] in BARRED[floor(module)] if name[0] == "!" else floor(name) > floor(module))
    ]
    assert up == []


def test_imports_go_in_no_circle():
    graph = {module: {*imports(path, at_import=True)} - {module} for module, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the circle
