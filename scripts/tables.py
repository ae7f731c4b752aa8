#!/usr/bin/env python3
"""Write the tables of the documents that follow from declarations in the code.

A page has a place for each, which begins with ``<!-- generated: KIND NAME -->`` and ends with
``<!-- end of generated -->``:

==================== ==============================================================
``settings NAME``    the settings of a protocol, of ``listener``, ``broker`` or ``http``
``frames NAME``      the frames or requests of a protocol, with their fields
``filters NAME``     the display filters of a protocol's dissector for Wireshark
``errors NAME``      a protocol's answer to each refusal of the broker
``metrics all``      the metrics of the broker
``endpoints all``    the endpoints of the HTTP API
``api MODULE``       the public names of a module, with signatures and docstrings
==================== ==============================================================

It also writes ``docs/deploy/pubsub.toml``, the sample of the configuration file.

With --check nothing is written, and the exit code is 1 if a page is not current.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pubsub.broker.access_rules.access_table import ACTIONS  # noqa: E402
from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS  # noqa: E402
from pubsub.dissector.generator import display_filters  # noqa: E402
from pubsub.http_api.endpoints import ENDPOINTS, JSON, Endpoint  # noqa: E402
from pubsub.http_api.metrics.metric_families import FAMILIES  # noqa: E402
from pubsub.plugin import ADMIN, installed_protocols  # noqa: E402
from pubsub.protocols.cafe import codec as cafe  # noqa: E402
from pubsub.protocols.cafe import refusals as cafe_refusals  # noqa: E402
from pubsub.protocols.fast import codec as fast  # noqa: E402
from pubsub.protocols.fast import refusals as fast_refusals  # noqa: E402
from pubsub.protocols.nsd import codec as nsd  # noqa: E402
from pubsub.protocols.nsd import refusals as nsd_refusals  # noqa: E402
from pubsub.protocols.rheos import codec as rheos  # noqa: E402
from pubsub.protocols.rheos import refusals as rheos_refusals  # noqa: E402
from pubsub.protocols.spot import commands as spot  # noqa: E402
from pubsub.server.broker_settings import BROKER_SETTINGS  # noqa: E402
from pubsub.server.configuration import flag  # noqa: E402
from pubsub.server.reload_effects import BROKER, EFFECTS, LISTENER  # noqa: E402
from pubsub.server.sample_configuration import sample  # noqa: E402
from pubsub.settings import BOOLEAN, Setting  # noqa: E402
from pubsub.wire.fields import layout  # noqa: E402

_PLACE = re.compile(
    r"(<!-- generated: (\w+) ([\w.]+) -->\n).*?(<!-- end of generated -->)", re.DOTALL
)
Row = Sequence[str]


def table(head: Row, rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# Settings


def settings(name: str) -> str:
    """Return the settings of a protocol, or of all listeners, the broker or the HTTP API."""
    if name in (BROKER, LISTENER):
        found = BROKER_SETTINGS if name == BROKER else LISTENER_SETTINGS
        rows = [_setting(s, s.name, name) for s in found]
    else:
        protocol = ADMIN if name == "http" else installed_protocols()[name]
        rows = [_setting(s, flag(protocol, s), protocol.name) for s in protocol.settings]
    return table(("key", "option", "value", "default", "reload", "meaning"), rows)


def _setting(setting: Setting, option: str, scope: str) -> Row:
    default = setting.default
    if setting.kind is BOOLEAN:
        default = "on" if default else "off"
    shown = f"`{default}`" if default not in ("", None) else ""
    return (
        f"`{setting.name}`",
        f"`--{option}`",
        f"`{setting.kind.syntax}`",
        shown,
        EFFECTS[scope][setting.name],
        setting.help,
    )


# Frames


def _shown_fields(frame: type, kinds: bool = True) -> str:
    if kinds:
        return "; ".join(f"`{name}` {kind.description}" for name, kind in layout(frame)) or "none"
    return ", ".join(f"`{field.name}`" for field in fields(frame)) or "none"


def _numbered(frames: Mapping[int, type]) -> str:
    rows = [
        (f"0x{number:02x}", _upper(frame), _shown_fields(frame), _summary(frame))
        for number, frame in frames.items()
    ]
    return table(("number", "name", "fields", "meaning"), rows)


def _upper(frame: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", frame.__name__).upper()


def _summary(item: object) -> str:
    return (inspect.getdoc(item) or "").split("\n\n")[0].replace("``", "`")


def _rheos_frames() -> str:
    parts: tuple[type, ...] = (
        rheos.SpecHeader, rheos.SpecTopic, rheos.OriginalHeader, rheos.OriginalTopic,
        rheos.Ack, rheos.ResponseHeader,
    )  # fmt: skip
    opcodes = table(("opcode", "name"), [(str(int(o)), o.name) for o in rheos.Opcode])
    rows = [(part.__name__, _shown_fields(part), _summary(part)) for part in parts]
    return opcodes + "\n\n" + table(("part", "fields", "meaning"), rows)


def _classes(frames: Iterable[type], suffix: str) -> str:
    rows = [(f"{f.__name__}{suffix}", _shown_fields(f, False), _summary(f)) for f in frames]
    return table(("name", "fields", "meaning"), rows)


_FRAMES: dict[str, Callable[[], str]] = {
    "cafe": lambda: _numbered(cafe.FRAMES),
    "fast": lambda: _numbered(fast.PACKETS),
    "rheos": _rheos_frames,
    "nsd": lambda: _classes(
        (nsd.Open, nsd.Publish, nsd.Subscribe, nsd.Unsubscribe, nsd.Get), "Request"
    ),
    "spot": lambda: _classes(
        (spot.Publish, spot.Subscribe, spot.Unsubscribe, spot.Query, spot.QueryResponse), ""
    ),
}


def frames(name: str) -> str:
    """Return the frames of a protocol."""
    return _FRAMES[name]()


def filters(name: str) -> str:
    """Return the display filters of a protocol, and the types of their values."""
    found = display_filters(installed_protocols()[name])
    return table(("field", "type"), [(f"`pubsub.{name}.{f.name}`", f.type) for f in found])


# Errors

_ERRORS: dict[str, Mapping[type[Any], Any]] = {
    "cafe": cafe_refusals.CODES,
    "fast": fast_refusals.CODES,
    "nsd": nsd_refusals.TEXTS,
    "rheos": rheos_refusals.REASONS,
}


def errors(name: str) -> str:
    """Return what a protocol answers to the refusals that it has an answer of its own for."""
    rows = [
        (_answer(answer), f"`{refusal.reason}`", _summary(refusal))
        for refusal, answer in sorted(_ERRORS[name].items(), key=lambda item: str(item[1]))
    ]
    return table(("answer", "reason in counters and logs", "cause"), rows)


def metrics(name: str) -> str:
    """Return the families of metrics, with their names as in queries."""
    rows = [
        (
            f"`{family.shown}`",
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            family.help,
        )
        for family in FAMILIES
    ]
    return table(("name", "kind", "labels", "meaning"), rows)


def endpoints(name: str) -> str:
    """Return the endpoints of the HTTP API, with their parameters and members of the body."""
    rows = [
        (
            f"`{one.method} {one.shown_path}`",
            _parameters(one.query, one.required),
            _body(one),
            f"`{one.permission}`" if one.permission in ACTIONS else one.permission or "none",
            one.summary,
        )
        for one in ENDPOINTS
    ]
    return table(("request", "parameters", "body", "permission", "meaning"), rows)


def _parameters(schemas: Iterable[str], required: Iterable[str]) -> str:
    demanded = set(required)
    return ", ".join(f"**`{one}`**" if one in demanded else f"`{one}`" for one in schemas)


def _body(endpoint: Endpoint) -> str:
    if endpoint.body is None:
        return ""
    if endpoint.body_type != JSON:
        return "bytes"
    return "JSON: " + _parameters(endpoint.body["properties"], endpoint.body["required"])


def _answer(answer: object) -> str:
    if isinstance(answer, enum.IntEnum):
        return f"{answer.name} (0x{int(answer):02x})"
    return f"`{answer}`"


# The Python interface


def api(name: str) -> str:
    """Return the public names of a module in the order of ``__all__``, else of the source."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == name
    ]
    return "\n\n".join(
        part for key in names for part in _documented(key, getattr(module, key), "###")
    )


def _documented(name: str, item: Any, level: str) -> Iterator[str]:
    if inspect.isclass(item):
        yield f"{level} {name}"
        if not issubclass(item, (BaseException, enum.Enum)):
            yield f"```text\n{name}{_signature(item)}\n```"
        yield _prose(item)
        for key, value in vars(item).items():
            if not key.startswith("_"):
                yield from _member(f"{name}.{key}", value)
    elif callable(item):
        yield f"{level} {name}"
        yield f"```text\n{name}{_signature(item)}\n```"
        yield _prose(item)


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield f"`{name}`: {_prose(value)}"
    elif isinstance(value, (staticmethod, classmethod)):
        yield f"`{name}{_signature(value.__func__)}`: {_prose(value)}"
    elif inspect.isfunction(value):
        asynchronous = "await " if inspect.iscoroutinefunction(value) else ""
        yield f"`{asynchronous}{name}{_signature(value)}`: {_prose(value)}"


def _signature(item: Any) -> str:
    try:
        shown = str(inspect.signature(item))
    except (TypeError, ValueError):
        return "(...)"
    # A NamedTuple has its annotations as references.
    shown = re.sub(r"ForwardRef\(('[^']*')\)", r"\1", shown)
    return re.sub(r"'([^']*)'", r"\1", shown).replace("(self, ", "(").replace("(self)", "()")


def _prose(item: Any) -> str:
    text = inspect.getdoc(item) or ""
    return text.replace("``", "`")


_KINDS = {
    "settings": settings,
    "frames": frames,
    "filters": filters,
    "errors": errors,
    "metrics": metrics,
    "endpoints": endpoints,
    "api": api,
}


def filled(page: str) -> str:
    """Return ``page`` with current tables; raises KeyError for an unknown kind or name."""
    return _PLACE.sub(lambda place: f"{place[1]}\n{_KINDS[place[2]](place[3])}\n\n{place[4]}", page)


def pages() -> list[Path]:
    """Return the pages that have such places."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if _PLACE.search(page.read_text())]


def current_sample() -> tuple[Path, str]:
    """Return the path of the sample of the configuration file, and what it has to be."""
    return ROOT / "docs/deploy/pubsub.toml", sample(installed_protocols())


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    stale = []
    path, text = current_sample()
    if not path.exists() or path.read_text() != text:
        stale.append(path.name)
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for page in pages():
        text = page.read_text()
        current = filled(text)
        if current != text:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(current)
    if stale and "--check" in arguments:
        print(f"not current: {', '.join(stale)}: run scripts/tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
