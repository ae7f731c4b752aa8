"""Finds the messages in the source: log lines, and the texts of errors that are raised."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_LOGGING = {"debug", "info", "warn", "warning", "error", "critical", "failure"}


class Message(NamedTuple):
    """A message with the module that has it, as a path below the root."""

    module: str
    text: str


@cache
def find_messages(package: Path = ROOT / "pubsub") -> frozenset[Message]:
    """Return every message; inserted values are in braces, as in the source."""
    found: set[Message] = set()
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package.parent).as_posix()
        tree = ast.parse(path.read_text())
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= {Message(module, text) for text in _texts_in(scope)}
    return frozenset(found)


def _texts_in(scope: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    assigned = _assigned(scope)
    for node in ast.walk(scope):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            arguments: list[ast.expr] = node.exc.args
        elif isinstance(node, ast.Call) and _is_logging(node.func):
            arguments = node.args[:1]
        else:
            continue
        for argument in arguments:
            for text in _templates(argument, assigned):
                # A single word is a code or a name.
                if " " in text.strip():
                    yield " ".join(text.split())


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the expressions that are assigned to each local name."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _is_logging(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in _LOGGING:
        return False
    return ast.unparse(function.value).rpartition(".")[2] in {"log", "_log", "logger"}


def _templates(node: ast.expr, assigned: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Return the texts that ``node`` can be."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=values):
            yield "".join(map(_part, values))
        case ast.IfExp(body=body, orelse=other):
            yield from _templates(body, assigned)
            yield from _templates(other, assigned)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            befores, afters = list(_templates(left, assigned)), list(_templates(right, assigned))
            # A sum of numbers is not a text.
            if befores or afters:
                for before in befores or [_braced(left)]:
                    yield from (before + after for after in afters or [_braced(right)])
        case ast.Name(id=name):
            for value in assigned.get(name, ()):
                if not (isinstance(value, ast.Name) and value.id == name):
                    yield from _templates(value, {})


def _part(value: ast.expr) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    assert isinstance(value, ast.FormattedValue)
    return _braced(value.value)


def _braced(node: ast.expr) -> str:
    return "{" + ast.unparse(node) + "}"
