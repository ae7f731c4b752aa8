#!/usr/bin/env python3
"""Draw the import graph of pubsub/ into docs/architecture.md, as a Mermaid diagram.

An arrow leads from a part of the package to each part that it imports at run time; imports under
TYPE_CHECKING do not count. A dashed arrow leads to a part that a plugin object names as text and
that is imported when it is first used. Parts that import no other part are listed below the
diagram. With --check nothing is written, and the exit code is 1 if the page is not current.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "pubsub"
_MARKED = re.compile(r"(<!-- import graph -->\n).*?(<!-- end -->)", re.DOTALL)
_MODULE = re.compile(rf"{PACKAGE}(?:\.[a-z_]+)+")

Arrow = tuple[str, str]


def imported(node: ast.AST) -> Iterator[str]:
    """The names that ``node`` imports at run time, in functions too."""
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        children = list(node.orelse)
    elif isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in children:
        yield from imported(child)


def named(node: ast.AST) -> Iterator[str]:
    """The modules that ``node`` passes as text to calls, for an import when it is used."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            for argument in call.args:
                value = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(value, str) and _MODULE.fullmatch(value):
                    yield value


def part_of(name: str) -> str:
    """The part of the package that the module or object ``name`` is in; empty outside of it."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == PACKAGE else ""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Each module of the package and each plugin file, with the part that it belongs to."""
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        part = path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")
        if part != "__init__":
            yield part, ast.parse(path.read_text())
    for path in sorted((ROOT / "twisted" / "plugins").glob("*.py")):
        yield "plugin", ast.parse(path.read_text())


def graph() -> tuple[set[str], set[Arrow], set[Arrow]]:
    """The parts, their imports at run time, and what they name only as text."""
    parts: set[str] = set()
    imports: set[Arrow] = set()
    names: set[Arrow] = set()
    for part, tree in sources():
        parts.add(part)
        imports |= {(part, part_of(name)) for name in imported(tree)}
        names |= {(part, part_of(name)) for name in named(tree)}
    between = {(a, b) for a in parts for b in parts if a != b}
    return parts, imports & between, (names - imports) & between


def diagram() -> str:
    """The Mermaid diagram, and the sentence below it."""
    parts, imports, names = graph()
    leaves = sorted(parts - {part for part, _ in imports | names})
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {a} --> {b}" for a, b in sorted(imports) if b not in leaves]
    lines += [f"    {a} -.-> {b}" for a, b in sorted(names)]
    lines += ["```", "", "Not shown, because they import no other part: " + _listed(leaves) + "."]
    return "\n".join(lines)


def _listed(parts: list[str]) -> str:
    return ", ".join(f"`{part}`" for part in parts)


def drawn(page: str) -> str:
    """``page`` with the diagram between its marks. Raises ValueError without the marks."""
    text, count = _MARKED.subn(lambda found: f"{found[1]}\n{diagram()}\n\n{found[2]}", page)
    if count != 1:
        raise ValueError(f"{count} places are marked for the import graph; expected one")
    return text


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    page = PAGE.read_text()
    current = drawn(page)
    if "--check" not in arguments:
        PAGE.write_text(current)
    elif current != page:
        print(f"{PAGE.name} is not current: run scripts/architecture.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
