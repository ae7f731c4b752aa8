"""Runs tshark with the dissector on captures, and reads its output."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from pubsub.dissector.generator import generate
from pubsub.plugin import installed_protocols
from tests.dissector.captures import SERVER, Capture
from tests.integration.needs import missing

TIMEOUT = 120
# A warning of tshark to root.
_HARMLESS = ("Running as user",)


@dataclass(slots=True)
class Unit:
    """The fields that the dissector shows of a frame, line or message.

    ``fields`` has each field's values as hexadecimal bytes, ``shown`` as text, both by the name
    after ``pubsub.<protocol>.``, and ``experts`` the last part of the expert items' names.
    """

    fields: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    shown: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    experts: list[str] = field(default_factory=list)
    frame: int = 0
    from_client: bool = True


@cache
def script() -> str:
    """Return the path of the dissector."""
    folder = tempfile.mkdtemp(prefix="pubsub-dissector-")
    path = Path(folder) / "pubsub.lua"
    path.write_text(generate(installed_protocols()))
    return str(path)


def tshark(capture: bytes, arguments: Sequence[str], lua: str = "") -> bytes:
    """Return the output of tshark; raises AssertionError if it has any complaint."""
    program = shutil.which("tshark")
    if program is None:
        missing("tshark")
    with tempfile.TemporaryDirectory() as home:
        file = Path(home, "capture.pcap")
        file.write_bytes(capture)
        ended = subprocess.run(
            [program, "-r", file, "-n", "-X", f"lua_script:{lua or script()}", *arguments],
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            # The profile of the user who runs the tests does not count.
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home},
        )
    complaints = [
        line for line in ended.stderr.decode().splitlines() if not line.startswith(_HARMLESS)
    ]
    assert not complaints, complaints[:5]
    assert ended.returncode == 0
    assert b"Lua Error" not in ended.stdout
    return ended.stdout


def dissect(
    capture: Capture, protocol: str, options: Mapping[str, str] | None = None
) -> dict[str, list[Unit]]:
    """Return the units of each client, by its address, in their order."""
    given = [f"-o{name}:{value}" for name, value in (options or {}).items()]
    output = tshark(bytes(capture), ["-T", "pdml", "-J", f"frame ip pubsub.{protocol}", *given])
    found: dict[str, list[Unit]] = defaultdict(list)
    for packet in ElementTree.fromstring(output).iter("packet"):
        addresses = {_text(packet, "ip.src"), _text(packet, "ip.dst")} - {SERVER}
        client = addresses.pop()
        for proto in packet.findall("proto"):
            if proto.get("name") == f"pubsub.{protocol}":
                from_client = _text(packet, "ip.dst") == SERVER
                unit = Unit(frame=int(_text(packet, "frame.number")), from_client=from_client)
                for each in proto.iter("field"):
                    _add_field(unit, f"pubsub.{protocol}.", each)
                found[client].append(unit)
    return found


def _add_field(unit: Unit, prefix: str, each: ElementTree.Element) -> None:
    name = each.get("name", "")
    if name.startswith(f"{prefix}expert."):
        unit.experts.append(name.removeprefix(f"{prefix}expert."))
    elif name.startswith(prefix):
        unit.fields[name.removeprefix(prefix)].append(each.get("value", ""))
        unit.shown[name.removeprefix(prefix)].append(each.get("show", ""))


def _text(packet: ElementTree.Element, name: str) -> str:
    found = packet.find(f".//field[@name='{name}']")
    assert found is not None, name
    return found.get("show", "")


def columns(
    capture: Capture, arguments: Sequence[str] = (), fields: Sequence[str] = ()
) -> Iterator[list[str]]:
    """Yield the values of ``fields`` for each packet."""
    chosen = [part for name in fields for part in ("-e", name)]
    output = tshark(bytes(capture), ["-T", "fields", *chosen, *arguments])
    for line in output.decode().splitlines():
        yield line.split("\t")
