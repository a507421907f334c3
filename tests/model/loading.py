"""The pure modules of the package under another name: as they are, or with one rule changed."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / 'anarchon_celery'

#: The modules whose rules are broken.
RULES = (
    'protocol', 'claiming', 'floors', 'holding', 'ledger', 'requests', 'transitions', 'turns', 'youth'
)  # fmt: skip

Names = tuple[str, ...]


class _Loader(SourceLoader):
    """Reads a module of the package, and not what was compiled of it before."""

    def get_filename(self, fullname: str) -> str:
        return str(PACKAGE / f'{fullname.rpartition(".")[2]}.py')

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def path_stats(self, path: str):
        raise OSError('these are modules of their own')


class _Finder(MetaPathFinder):
    def __init__(self, package: str):
        self.package, self.loader = package, _Loader()

    def find_spec(self, fullname, path=None, target=None):
        package, _, name = fullname.rpartition('.')
        if package != self.package or not (PACKAGE / f'{name}.py').exists():
            return None
        return ModuleSpec(fullname, self.loader, origin=self.loader.get_filename(fullname))


@functools.cache
def rules() -> types.SimpleNamespace:
    """Load the rules; nothing of Celery comes along, and who breaks one breaks it for nobody else."""
    name = '_rules'
    package = types.ModuleType(name)
    package.__path__ = []
    finder = _Finder(name)
    sys.modules[name] = package
    sys.meta_path.insert(0, finder)
    try:
        found = {module: importlib.import_module(f'{name}.{module}') for module in (*RULES, 'slots')}
    finally:
        sys.meta_path.remove(finder)
    return types.SimpleNamespace(**found)


def source(module: str) -> str:
    """The text of one of the package's modules."""
    return (PACKAGE / f'{module}.py').read_text()


# In place ---------------------------------------------------------------------------------------


@functools.cache
def functions(module: str) -> dict[Names, tuple[ast.FunctionDef, str]]:
    """The functions of a module and of its classes, by their names: parsed, and as text."""
    return dict(_parsed(ast.parse(source(module))))


def changed(module: str, text: str) -> tuple[Names, str]:
    """The one function of a module that is another one in this text."""
    were = functions(module)
    ((names, text),) = (
        (names, text) for names, (_, text) in _parsed(ast.parse(text)) if text != were[names][1]
    )
    return names, text


def _parsed(node: ast.AST, *names: str) -> Iterator[tuple[Names, tuple[ast.FunctionDef, str]]]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.FunctionDef):
            yield (*names, part.name), (part, ast.unparse(part))
        elif isinstance(part, ast.ClassDef):
            yield from _parsed(part, part.name)


@functools.cache
def _code(text: str) -> types.CodeType:
    """What a function would do by this text."""
    module = compile(f'from __future__ import annotations\n{text}', '<broken>', 'exec', dont_inherit=True)
    return next(code for code in module.co_consts if isinstance(code, types.CodeType))


def found(module: types.ModuleType, names: Names) -> types.FunctionType:
    """The function of a module by its names."""
    it: Any = module
    for name in names:
        it = vars(it)[name]
    function = it.fget if isinstance(it, property) else it
    assert isinstance(function, types.FunctionType)
    return function


@contextmanager
def broken(function: types.FunctionType, text: str) -> Iterator[None]:
    """Have a function do meanwhile what it does by this text.

    Only its code is exchanged: who has imported it has the broken one too, and values stay of one kind.
    """
    was = function.__code__
    function.__code__ = _code(text)
    try:
        yield
    finally:
        function.__code__ = was
