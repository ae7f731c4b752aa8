"""The examples of the README, run as printed except for the ports.

``tests/contract/test_documented_plugin.py`` runs those of docs/protocols.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

from tests.integration.broker import HOST, Start, listen

ROOT = Path(__file__).parents[2]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of ``page`` in one language."""
    found = _FENCED.finditer((ROOT / page).read_text())
    return [block[2] for block in found if block[1] == language]


def test_the_quick_start(start: Start) -> None:
    broker = start(*listen("cafe", "nsd"), f"--admin-port=tcp:0:interface={HOST}")
    ports = {"7070": "cafe", "7071": "nsd", "7080": "admin"}
    shell = []
    for text in blocks("README.md", "sh"):
        for number, protocol in ports.items():
            text = text.replace(number, str(broker.port(protocol)))
        shell.append(text)
    publish, read = (text for text in shell if "<<'END'" in text)
    (url,) = (url for text in shell for url in re.findall(r'curl "(.*?)"', text))
    expected = next(text for text in blocks("README.md", "") if "MessageListResponse" in text)

    def run(text: str) -> str:
        text = text.replace("python3", sys.executable)
        return subprocess.run(
            ["sh", "-ec", text], capture_output=True, text=True, check=True
        ).stdout

    assert re.fullmatch(r"session [0-9a-f]{16}\n", run(publish))
    assert run(read) == expected
    with urlopen(url) as response:
        assert len(response.read().splitlines()) == 2
