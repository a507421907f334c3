"""Each comparison of the rules, each ``and`` and ``or``, turned around: nobody has to think of these."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .loading import RULES, functions
from .mutants import Mutant

_TURNED: dict[type, Any] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def turned() -> Iterator[Mutant]:
    """Each of them, named by its function and its text: line numbers move."""
    for module in RULES:
        for names, (function, _) in functions(module).items():
            seen = Counter[str]()
            for node in ast.walk(function):
                if isinstance(node, ast.Compare | ast.BoolOp):
                    name = f'{".".join((module, *names))}: {ast.unparse(node)}'
                    seen[name] += 1
                    name += f' ({seen[name]})' * (seen[name] > 1)
                    yield Mutant(name, module, names, _with_turned(function, node))


def _with_turned(function: ast.FunctionDef, node: ast.Compare | ast.BoolOp) -> str:
    if isinstance(node, ast.BoolOp):
        was, node.op = node.op, _TURNED[type(node.op)]()
        text = ast.unparse(function)
        node.op = was
        return text
    first = node.ops[0]
    node.ops[0] = _TURNED[type(first)]()
    text = ast.unparse(function)
    node.ops[0] = first
    return text
