"""Examples of docs/recipes.md where something fails, which the page does not show."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.integration.broker import HOST, Start, listen
from tests.integration.document_blocks import ROOT, blocks
from tests.integration.document_runs import PageRun


def test_a_batch_that_was_not_handled_comes_again(start: Start, tmp_path: Path) -> None:
    broker = start(*listen("http"))
    api = f"http://{HOST}:{broker.port('http')}/v1"
    page = PageRun(tmp_path, {7080: broker.port("http")})
    found = list(blocks(ROOT / "docs" / "recipes.md"))
    (program,) = (index for index, one in enumerate(found) if one.note == "file: consumer.py")
    page.run(found[program])
    # It is not text, which the program expects.
    urlopen(Request(f"{api}/topics/orders/messages", b"\xff")).close()
    with pytest.raises(AssertionError, match="UnicodeDecodeError"):
        page.run(found[program + 1])
    with urlopen(f"{api}/readers") as response:
        (reader,) = json.load(response)["items"]
    assert (reader["name"], reader["offset"]) == ("billing", 0)
