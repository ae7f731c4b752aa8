"""Every code block of the documents is run here, run by another test, or marked as not run.

One broker serves the blocks of all pages; ``document_runs.py`` says how a block is run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.integration.broker import HOST, Broker, Start, brokers, listen
from tests.integration.document_blocks import ROOT, blocks
from tests.integration.document_runs import PageRun
from tests.integration.fast_client import make_secret

CONVERTED = ("docs/testing.md",)
BLOCKS = {name: list(blocks(ROOT / name)) for name in CONVERTED}
README = {
    language: [one.text for one in blocks(ROOT / "README.md") if one.language == language]
    for language in ("", "sh")
}
DEFAULTS = {7070: "cafe", 7071: "nsd", 7072: "rheos", 7073: "spot", 7074: "fast", 7080: "admin"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield the broker of all pages."""
    directory = tmp_path_factory.mktemp("broker")
    secret = make_secret(directory / "pubsub.key")
    with brokers(directory) as start:
        yield start(
            *listen("cafe", "nsd", "rheos", "spot", "fast"),
            "--admin-port=tcp:0:interface=127.0.0.1",
            f"--secret-file={secret}",
        )


@pytest.mark.parametrize("name", BLOCKS)
def test_the_blocks_of_a_page(name: str, broker: Broker, tmp_path: Path) -> None:
    ports = {default: broker.port(protocol) for default, protocol in DEFAULTS.items()}
    page = PageRun(tmp_path, ports, {})
    for block in BLOCKS[name]:
        if block.is_run:
            page.run(block)


def test_the_quick_start(start: Start) -> None:
    broker = start(*listen("cafe", "nsd"), f"--admin-port=tcp:0:interface={HOST}")
    ports = {"7070": "cafe", "7071": "nsd", "7080": "admin"}
    shell = []
    for text in README["sh"]:
        for number, protocol in ports.items():
            text = text.replace(number, str(broker.port(protocol)))
        shell.append(text)
    publish, read = (text for text in shell if "<<'END'" in text)
    (url,) = (url for text in shell for url in re.findall(r'curl "(.*?)"', text))
    expected = next(text for text in README[""] if "MessageListResponse" in text)

    def run(text: str) -> str:
        text = text.replace("python3", sys.executable)
        return subprocess.run(
            ["sh", "-ec", text], capture_output=True, text=True, check=True
        ).stdout

    assert re.fullmatch(r"session [0-9a-f]{16}\n", run(publish))
    assert run(read) == expected
    with urlopen(url) as response:
        assert len(response.read().splitlines()) == 2
