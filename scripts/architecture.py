#!/usr/bin/env python3
"""Draw the import graph of pubsub/ into docs/architecture.md, as a Mermaid diagram.

An arrow leads from a component to each one that it imports at run time; imports under TYPE_CHECKING
do not count. A dashed arrow leads to a component that a plugin object names as text and that is
imported when it is first used. Components that import no other are listed below the diagram. With
--check nothing is written, and the exit code is 1 if the page is not current.
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
    # No expression contains an import.
    children = [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.expr)]
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


def component_of(name: str) -> str:
    """Return the component that the module or object ``name`` is in; empty outside the package."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == PACKAGE else ""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Each module of the package and each plugin file, with the component that it belongs to."""
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        component = path.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")
        if component != "__init__":
            yield component, ast.parse(path.read_text())
    for path in sorted((ROOT / "twisted" / "plugins").glob("*.py")):
        yield "plugin", ast.parse(path.read_text())


def graph() -> tuple[set[str], set[Arrow], set[Arrow]]:
    """The components, their imports at run time, and what they name only as text."""
    components: set[str] = set()
    imports: set[Arrow] = set()
    names: set[Arrow] = set()
    for component, tree in sources():
        components.add(component)
        imports |= {(component, component_of(name)) for name in imported(tree)}
        names |= {(component, component_of(name)) for name in named(tree)}
    between = {(a, b) for a in components for b in components if a != b}
    return components, imports & between, (names - imports) & between


def diagram() -> str:
    """The Mermaid diagram, and the sentence below it."""
    components, imports, names = graph()
    leaves = sorted(components - {component for component, _ in imports | names})
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {a} --> {b}" for a, b in sorted(imports) if b not in leaves]
    lines += [f"    {a} -.-> {b}" for a, b in sorted(names)]
    lines += [
        "```",
        "",
        "Not shown, because they import no other component: " + _listed(leaves) + ".",
    ]
    return "\n".join(lines)


def _listed(components: list[str]) -> str:
    return ", ".join(f"`{component}`" for component in components)


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
