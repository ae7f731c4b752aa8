"""The permitted imports between components of the package, read from the sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from scripts.architecture import imported

ROOT = Path(__file__).parents[2]
PACKAGES = ("pubsub", "twisted")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Imports(NamedTuple):
    """The imports of one module."""

    direct: set[str]
    """The names that are imported at run time, and the modules of these."""
    statements: list[ast.Import | ast.ImportFrom]
    """All statements, also those under TYPE_CHECKING."""


@cache
def imports() -> dict[str, Imports]:
    """Return the imports of each module of the package, and of each dropin."""
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        names = set(imported(tree))
        # `from module import object` names the object; the module before it is imported.
        direct = names | {name.rpartition(".")[0] for name in names}
        statements = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        found[module_name(path)] = Imports(direct, statements)
    return found


def all_modules_imported(module: str) -> set[str]:
    """Return the modules of the package that ``module`` imports, also under TYPE_CHECKING."""
    names = set()
    for node in imports()[module].statements:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module is not None:
            found = {f"{node.module}.{alias.name}" for alias in node.names}
            # `from module import name` imports the module; `from package import module` does not.
            names |= found & imports().keys() or {node.module}
    return (names & imports().keys()) - {module}


def all_imports(module: str) -> set[str]:
    """Return the names imported by ``module`` and by the modules of the package it imports."""
    found: set[str] = set()
    pending = [module]
    while pending:
        module = pending.pop()
        new = imports()[module].direct - found if module in imports() else set()
        found |= new
        pending += new
    return found


def inside(name: str, *packages: str) -> bool:
    """Return whether ``name`` is one of ``packages`` or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def violations(importers: list[str], *forbidden: str, own: str = "") -> list[str]:
    """Return the imports of ``forbidden`` packages, direct or not; those of ``own`` are allowed."""
    return [
        f"{module} imports {name}"
        for module in importers
        for name in sorted(all_imports(module))
        if inside(name, *forbidden) and not (own and inside(name, own))
    ]


def package_of(module: str) -> str:
    """Return the package of a component that has the module, or a module between packages."""
    return ".".join(module.split(".")[:3])


def modules(*packages: str) -> list[str]:
    """Return the modules of the package that are in one of ``packages``."""
    return sorted(module for module in imports() if inside(module, *packages))


def protocols() -> list[str]:
    """Return the packages of the protocols."""
    children = {".".join(m.split(".")[:3]) for m in modules("pubsub.protocols")}
    return sorted(children - {"pubsub.protocols"})


class LayeringTests(SynchronousTestCase):
    """Imports at run time. Those under TYPE_CHECKING do not count."""

    def test_the_domain_imports_no_other_part(self) -> None:
        around = (
            "wire",
            "protocols",
            "http_api",
            "store",
            "server",
            "pipeline",
            "client",
            "commands",
        )
        assert not violations(modules("pubsub.broker"), *(f"pubsub.{name}" for name in around))

    def test_no_other_part_imports_a_protocol(self) -> None:
        others = [module for module in imports() if not inside(module, "pubsub.protocols")]
        assert not violations(others, "pubsub.protocols")

    def test_codecs_and_the_kernel_import_no_twisted(self) -> None:
        pure = [
            m
            for m in modules("pubsub.protocols")
            if m.endswith((".codec", "commands", ".message_heads", ".zmtp"))
        ]
        pure += [*modules("pubsub.kernel"), "pubsub.wire.fields"]
        # Programs without Twisted's reactor use them.
        pure += [m for m in modules("pubsub.protocols") if ".client" in m]
        assert len(pure) > 10
        assert not violations(pure, "twisted", "zope")

    def test_a_protocol_imports_no_other_protocol(self) -> None:
        assert len(protocols()) >= 5
        for protocol in protocols():
            assert not violations(modules(protocol), "pubsub.protocols", own=protocol)

    def test_only_brokers_in_a_process_import_the_server(self) -> None:
        embedding = ("pubsub.embed", "pubsub.testing")
        # Commands for the broker's file.
        files = ("access", "check_config", "config")
        of_file = tuple(f"pubsub.commands.{name}" for name in files)
        allowed = ("pubsub.server", *embedding, *of_file)
        others = [module for module in imports() if not inside(module, *allowed)]
        assert not violations(others, "pubsub.server", *embedding)

    def test_nothing_imports_the_command(self) -> None:
        others = [module for module in imports() if not inside(module, "pubsub.commands")]
        assert not violations(others, "pubsub.commands")

    def test_a_dropin_imports_nothing_heavy(self) -> None:
        heavy = [f"pubsub.{n}" for n in ("broker", "protocols", "server", "store", "wire")]
        assert not violations(modules("twisted.plugins"), *heavy)


class CycleTests(SynchronousTestCase):
    """All imports, those for type checkers too"""

    def test_no_module_imports_itself_through_others(self) -> None:
        graph = {module: all_modules_imported(module) for module in imports()}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            self.fail(" -> ".join(error.args[1]))

    def test_no_package_imports_itself_through_others(self) -> None:
        for component in ("pubsub.http_api", "pubsub.pipeline", "pubsub.store"):
            graph: dict[str, set[str]] = {}
            for module in modules(component):
                names = {package_of(name) for name in all_modules_imported(module)}
                found = graph.setdefault(package_of(module), set())
                found |= {name for name in names if inside(name, component)} - {package_of(module)}
            assert len(graph) > 10
            try:
                TopologicalSorter(graph).prepare()
            except CycleError as error:
                self.fail(" -> ".join(error.args[1]))


class HelperTests(SynchronousTestCase):
    """Helpers of several test modules"""

    def test_no_module_imports_from_a_test_module(self) -> None:
        """Each module of tests can be changed, moved and removed without regard to the others."""
        found = [
            f"{path.relative_to(ROOT)} imports {name}"
            for path in sorted((ROOT / "tests").rglob("*.py"))
            for name in imported(ast.parse(path.read_text()))
            if name.startswith("tests.") and ".test_" in name
        ]
        assert not found, "move helpers to a module beside the tests:\n" + "\n".join(found)


class TopicStateTests(SynchronousTestCase):
    """The state of a topic changes by methods of ``PublishingState``: mixes learn of it there"""

    CHANGE = re.compile(r"(?<!self)\.(?:hosted|durability) = |\.blockers\.(?:add|discard|clear)\(")

    def test_nothing_else_changes_it(self) -> None:
        assert self.CHANGE.search("topic.hosted = True")
        found = [
            f"{path.relative_to(ROOT)}: {line.strip()}"
            for path in (ROOT / "pubsub").rglob("*.py")
            if path.name != "publishing_state.py"
            for line in path.read_text().splitlines()
            if self.CHANGE.search(line)
        ]
        assert not found, "\n".join(found)
