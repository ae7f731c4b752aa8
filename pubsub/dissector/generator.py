"""The Lua file for Wireshark, from the declarations of the installed protocols."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.resources import files
from itertools import product
from typing import Any

from pubsub.dissector.declaration import Declaration, Script
from pubsub.dissector.lua import LuaValue, literal
from pubsub.dissector.tables import WireField, convert, declared_fields
from pubsub.plugin import IWireProtocol
from pubsub.settings import BOOLEAN, Setting

_PARTS = ("text", "json", "items", "packets", "lines", "protocol")
_RUNTIME = [Script("pubsub.dissector.runtime", f"{name}.lua") for name in _PARTS]
_HEAD = """\
-- A dissector for Wireshark of the protocols that {names} serves: {protocols}.
-- Written by `pubsub dissector`, which derives it from the broker's codecs. Changes belong there.

local runtime = {{ framings = {{}} }}
"""


def generate(protocols: Mapping[str, IWireProtocol]) -> str:
    """Return the Lua file for those of ``protocols`` that declare a dissector."""
    declared = {name: each for name, each in protocols.items() if each.dissector is not None}
    about = f"pubsub-broker {version('pubsub-broker')}"
    parts = [_HEAD.format(names=about, protocols=", ".join(declared))]
    parts += [_block(_source(script)) for script in _RUNTIME]
    for protocol in declared.values():
        declaration = protocol.dissector
        scripts = () if declaration is None else declaration.scripts
        parts += [_block(_source(script)) for script in scripts]
        parts.append(f"runtime.register({literal(_table(protocol))})\n")
    return "\n".join(parts)


def display_filters(protocol: IWireProtocol) -> list[WireField]:
    """Return the fields of a protocol's dissector, without their prefix; none if it has none."""
    declaration = protocol.dissector
    if declaration is None:
        return []
    variants = [frames for _key, frames in _variants(protocol, declaration)]
    return declared_fields(declaration, variants)


def _source(script: Script) -> str:
    return files(script.package).joinpath(script.name).read_text(encoding="utf-8")


def _block(source: str) -> str:
    """Return ``source`` with local names of its own."""
    return f"do\n{source.rstrip()}\nend\n"


def _settings(protocol: IWireProtocol, declaration: Declaration) -> list[Setting]:
    wanted = [*declaration.framing.variants, *declaration.settings]
    known = {setting.name: setting for setting in protocol.settings}
    return [known[name] for name in wanted]


def _choices(setting: Setting) -> list[str]:
    """Return the values of a setting that has a few; none for a number."""
    if setting.kind is BOOLEAN:
        return ["on", "off"]
    words = setting.kind.syntax.split("|")
    return words if len(words) > 1 else []


def _variants(
    protocol: IWireProtocol, declaration: Declaration
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the values of the settings that the layout depends on, and the frames for them."""
    names = declaration.framing.variants
    known = {setting.name: setting for setting in protocol.settings}
    for values in product(*(_choices(known[name]) for name in names)):
        options = dict(zip(names, values, strict=True))
        yield "/".join(values), declaration.framing.frames(options)


def _option(setting: Setting, variant: bool) -> dict[str, LuaValue]:
    choices = _choices(setting)
    default = setting.read(setting.default)
    found: dict[str, LuaValue] = {
        "name": setting.name,
        "preference": setting.name.replace("-", "_"),
        "title": setting.name.replace("-", " ").capitalize(),
        "help": setting.help,
        "variant": variant,
    }
    if not choices:
        return {**found, "default": int(default)}
    word = ("on" if default else "off") if isinstance(default, bool) else str(default)
    return {**found, "choices": choices, "default": choices.index(word) + 1}


def _table(protocol: IWireProtocol) -> dict[str, LuaValue]:
    declaration = protocol.dissector
    assert declaration is not None
    variants = dict(_variants(protocol, declaration))
    fields = declared_fields(declaration, list(variants.values()))
    varying = declaration.framing.variants
    settings = _settings(protocol, declaration)
    return {
        "name": protocol.name,
        "label": declaration.label,
        "port": protocol.port,
        "udp": declaration.udp,
        "framing": declaration.framing.kind,
        "options": [_option(setting, setting.name in varying) for setting in settings],
        "fields": [field.table() for field in fields],
        "variants": {key: convert(frames) for key, frames in variants.items()},
    }
