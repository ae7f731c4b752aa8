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
from typing import Any
from xml.etree import ElementTree

from pubsub.dissector.generator import generate
from pubsub.plugin import installed_protocols
from tests.dissector.captures import SERVER, Capture
from tests.integration.needs import missing

TIMEOUT = 120
_UNPRIVILEGED: Mapping[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}


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
    """Return the dissector."""
    return generate(installed_protocols())


def run(arguments: Sequence[str], capture: bytes = b"", lua: str = "") -> bytes:
    """Return the output of tshark with a dissector, ours without ``lua``.

    It runs in a directory with the ``capture`` as ``capture.pcap``. Raises AssertionError if it has
    any complaint.
    """
    program = shutil.which("tshark")
    if program is None:
        missing("tshark")
    with tempfile.TemporaryDirectory() as home:
        Path(home, "capture.pcap").write_bytes(capture)
        Path(home, "pubsub.lua").write_text(lua or script())
        os.chmod(home, 0o755)
        ended = subprocess.run(
            [program, *arguments, "-X", "lua_script:pubsub.lua"],
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            cwd=home,
            # The profile of the user who runs the tests does not count.
            env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home},
            # Wireshark 4.4 loads no dissector for root.
            **(_UNPRIVILEGED if os.geteuid() == 0 else {}),
        )
    complaints = ended.stderr.decode().splitlines()
    assert not complaints, complaints[:5]
    assert ended.returncode == 0
    output: bytes = ended.stdout
    return output


def tshark(capture: bytes, arguments: Sequence[str], lua: str = "") -> bytes:
    """Return what tshark shows of ``capture``; see ``run``."""
    shown = run(["-r", "capture.pcap", "-n", *arguments], capture, lua)
    assert b"Lua Error" not in shown
    return shown


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
