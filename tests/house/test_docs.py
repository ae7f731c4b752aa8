"""The documents against the tree: links, paths, options, settings, the glossary, the diagram."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.http_api.endpoints import ENDPOINTS
from pubsub.http_api.requests.api_error import STATUS as REFUSALS
from pubsub.plugin import ADMIN, installed_protocols
from pubsub.protocols.cafe.codec import ErrorCode as CafeCode
from pubsub.protocols.fast.codec import ErrorCode as FastCode
from pubsub.server.access_settings import ACCESS_KEYS
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.configuration import flag
from scripts import architecture, tables

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(p for d in ("docs", "seeds") for p in (ROOT / d).rglob("*.md"))]
)
OPERATING = ROOT / "docs" / "operating.md"
GLOSSARY = ROOT / "docs" / "glossary.md"
MOST_TERMS = 40

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(
    r"(?<![\w./-])(?:pubsub|tests|docs|seeds|scripts|twisted|changelog\.d)/[\w./-]*\w"
)
_MODULE = re.compile(r"(?<![\w./-])(?:pubsub|tests)(?:\.[a-z_]+)+(?![\w/-])")
_RENAMED = re.compile(r"\bto\s+`(pubsub(?:\.\w+)+)`")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)(?<!-)(?![\w-])")
_CELL = re.compile(r"(?<!\\)\|")
_WORD = re.compile(r"\w+")
# Names of operators' files that look like modules.
_FILES = {"pubsub.key", "pubsub.toml", "pubsub.service", "pubsub.lua"}
# Options of twistd, pipx, curl, pytest and others, of the example protocol in docs/protocols.md, of
# version 0.1.0, and of the tools that docs/command.md compares.
_FOREIGN = {
    "pidfile",
    "rundir",
    "include-deps",
    "logfile",
    "logger",
    "syslog",
    "build",
    "build-arg",
    "detach",
    "signal",
    "tag",
    "uid",
    "reactor",
    "help",
    "version",
    "data-binary",
    "fail-with-body",
    "toy-max-line",
    "spot-handshake-timeout",
    "all",
    "cov",
    "dist",
    "force-stdin",
    "jetstream",
    "raw",
    "repeat",
    "send-on",
    "wait",
}
# Keys of tables that are not settings.
_KEYS = {
    "protocol", "port", "endpoint", "ends", "algorithm", "public-key-file", "secret-file",
    "jwks-file", "jwks-url", "jwks-ca", "jwks-refresh", "actions", "issuer", "audience",
}  # fmt: skip
_RULE_KEYS = set(ACCESS_KEYS)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def code(page: Path) -> str:
    """Return the page's fenced blocks and inline code."""
    text = page.read_text()
    blocks = [found[2] for found in _FENCED.finditer(text)]
    return "\n".join(blocks + _SPAN.findall(prose(page)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Return the targets of the page's relative links: file and anchor."""
    for target in _LINK.findall(prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def is_module(name: str) -> bool:
    """Return whether ``name`` is a module or package, or an attribute of one."""
    path = ROOT.joinpath(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    return module.exists() and path.name in _WORD.findall(module.read_text())


def is_filter(name: str) -> bool:
    """Return whether ``name`` is a display filter of the dissector for Wireshark."""
    return name.split(".")[1] in installed_protocols()


def options() -> set[str]:
    """Return every option of the broker, the command ``pubsub`` and the programs in tests/."""
    found = {"proto", "port", "listen", "config", "secret", *_FOREIGN}
    found |= {s.name for s in (*BROKER_SETTINGS, *LISTENER_SETTINGS)}
    found |= {flag(p, s) for p in (*installed_protocols().values(), ADMIN) for s in p.settings}
    for folder in ("pubsub/commands", "pubsub/pipeline", "tests/bench", "tests/crash"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r'"--([a-z0-9-]+)"', path.read_text()))
    return found


def settings() -> set[str]:
    """Return the name of every setting, as a key of the file."""
    own = (s.name for p in (*installed_protocols().values(), ADMIN) for s in p.settings)
    return {*own, *(s.name for s in (*BROKER_SETTINGS, *LISTENER_SETTINGS))}


def keys(table: Mapping[str, object]) -> Iterator[str]:
    """Return the keys of a TOML document whose values are not tables."""
    for key, value in table.items():
        if key == "groups":
            # The names of groups.
            continue
        if isinstance(value, dict):
            yield from keys(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                yield from keys(entry)
        else:
            yield key


class LinkTests(SynchronousTestCase):
    """Links and names of files"""

    def test_relative_links_resolve(self) -> None:
        broken = [
            f"{name_of(page)}: {target}#{anchor}"
            for page in PAGES
            for target, anchor in links(page)
            if not target.exists() or (anchor and anchor not in anchors(target))
        ]
        assert not broken

    def test_paths_exist(self) -> None:
        missing = [
            f"{name_of(page)}: {path}"
            for page in PAGES
            for path in _PATH.findall(page.read_text())
            if not (ROOT / path).exists()
        ]
        assert not missing

    def test_modules_exist(self) -> None:
        missing = [
            f"{name_of(page)}: {name}"
            for page in PAGES
            for name in _MODULE.findall(page.read_text())
            if name not in _FILES and not is_filter(name) and not is_module(name)
        ]
        assert not missing

    def test_modules_exist_to_which_others_were_renamed(self) -> None:
        missing = [
            f"{fragment.name}: {name}"
            for fragment in (ROOT / "changelog.d").glob("*.md")
            for name in _RENAMED.findall(fragment.read_text())
            if not is_module(name)
        ]
        assert not missing


class SettingTests(SynchronousTestCase):
    """Options and settings"""

    def test_options_exist(self) -> None:
        known = options()
        unknown = [
            f"{name_of(page)}: --{name}"
            for page in PAGES
            for name in _OPTION.findall(code(page))
            if name not in known
        ]
        assert not unknown

    def test_settings_in_tables_exist(self) -> None:
        known = settings() | options()
        unknown = [
            f"{name_of(page)}: {name}"
            for page in PAGES
            for rows in re.findall(r"^\| settings? \|.*\n((?:\|.*\n)+)", prose(page), re.MULTILINE)
            for row in rows.splitlines()[1:]
            for name in _SPAN.findall(row.split("|")[1])
            if name not in known
        ]
        assert not unknown

    def test_keys_of_files_exist(self) -> None:
        known = settings() | _KEYS | _RULE_KEYS
        unknown = [
            f"{name_of(page)}: {key}"
            for page in PAGES
            for found in _FENCED.finditer(page.read_text())
            if found[1] == "toml"
            for key in keys(tomllib.loads(found[2]))
            if key not in known
        ]
        assert not unknown

    def test_every_setting_is_documented(self) -> None:
        text = code(OPERATING)
        named = set(re.findall(r"(?<![\w-])(?:--)?([a-z][a-z-]*)", text))
        missing = {s.name for s in (*BROKER_SETTINGS, *LISTENER_SETTINGS)} - named
        for protocol in (*installed_protocols().values(), ADMIN):
            for setting in protocol.settings:
                if not {setting.name, flag(protocol, setting)} & named:
                    missing.add(flag(protocol, setting))
        assert not missing


class GlossaryTests(SynchronousTestCase):
    """The column "in the code" of the glossary"""

    def test_names_in_the_code_exist(self) -> None:
        rows = [line.split("|")[1:-1] for line in GLOSSARY.read_text().splitlines() if "|" in line]
        terms = rows[2:]
        assert 0 < len(terms) <= MOST_TERMS
        source = "\n".join(path.read_text() for path in (ROOT / "pubsub").rglob("*.py"))
        words = set(_WORD.findall(source))
        unknown = [
            name
            for row in terms
            for name in _SPAN.findall(row[2])
            if not (ROOT / "pubsub" / name).exists()
            and ("/" in name or not words.issuperset(_WORD.findall(name.removesuffix(".py"))))
        ]
        assert not unknown


class DiagramTests(SynchronousTestCase):
    """The import graph in docs/architecture.md"""

    def test_it_is_current(self) -> None:
        page = architecture.PAGE.read_text()
        assert architecture.drawn(page) == page, "run scripts/architecture.py"


def misshapen(text: str) -> list[str]:
    """Return the rows that have another number of cells than their table."""
    found, before = [], 0
    for line in text.splitlines():
        cells = len(_CELL.findall(line)) if line.startswith("|") else 0
        if before and cells and cells != before:
            found.append(line)
        else:
            before = cells
    return found


class TableTests(SynchronousTestCase):
    """The tables that follow from declarations"""

    def test_every_row_has_all_cells(self) -> None:
        assert misshapen("| a | b |\n| 1 | 2 | | 3 | 4 |") == ["| 1 | 2 | | 3 | 4 |"]
        rows = [f"{name_of(page)}: {row}" for page in PAGES for row in misshapen(prose(page))]
        assert not rows

    def test_they_are_current(self) -> None:
        for page in tables.pages():
            text = page.read_text()
            assert tables.filled(text) == text, f"{page.name}: run scripts/tables.py"

    def test_the_page_of_the_api_has_its_table(self) -> None:
        page = (ROOT / "docs" / "http.md").read_text()
        assert "<!-- generated: endpoints all -->" in page
        for one in ENDPOINTS:
            assert f"`{one.method} {one.shown_path}`" in page

    def test_every_protocol_has_its_tables(self) -> None:
        for name in installed_protocols():
            page = (ROOT / "docs" / "protocols" / f"{name}.md").read_text()
            for kind in ("settings", "frames"):
                assert f"<!-- generated: {kind} {name} -->" in page, f"{name}: {kind}"

    def test_every_answer_to_a_fault_is_on_the_page_of_its_protocol(self) -> None:
        pages = {
            "cafe": [f"{code.name} (0x{code:02x})" for code in CafeCode],
            "fast": [f"{code.name} (0x{code:02x})" for code in FastCode],
            "nsd": ["INVALID REQUEST: [<line>]", "TOO MANY CONNECTIONS", "REQUEST TIMEOUT"],
        }
        for name, answers in pages.items():
            page = (ROOT / "docs" / "protocols" / f"{name}.md").read_text()
            assert [one for one in answers if one not in page] == []

    def test_every_refusal_over_http_is_on_its_page(self) -> None:
        page = (ROOT / "docs" / "http.md").read_text()
        errors = page[page.index("\n## Errors") : page.index("\n## Tokens")]
        missing = {refused.reason for refused in REFUSALS if f"`{refused.reason}`" not in errors}
        assert not missing, missing

    def test_every_specification_has_the_time_of_a_frame(self) -> None:
        for name in installed_protocols():
            assert "`frame-seconds`" in (ROOT / "seeds" / f"{name}.md").read_text(), name
