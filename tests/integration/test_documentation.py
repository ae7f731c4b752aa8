"""Every code block of the documents is run here, run by another test, or marked as not run.

One broker serves the pages that show no output; each other page has one of its own, with a new
history. ``document_runs.py`` says how a block is run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.broker import HOST, Broker, brokers, listen
from tests.integration.document_blocks import PAGES, ROOT, blocks, parse
from tests.integration.document_runs import PageRun
from tests.integration.fast_client import make_secret

BLOCKS = {str(page.relative_to(ROOT)): list(blocks(page)) for page in PAGES}
RUN = [name for name, found in BLOCKS.items() if any(block.is_run for block in found)]
MARKED = [block for found in BLOCKS.values() for block in found if block.is_marked]
DEFAULTS = {7070: "cafe", 7071: "nsd", 7072: "rheos", 7073: "spot", 7074: "fast", 7080: "http"}
# Files of the reader that examples name.
FILES = {"pubsub.toml": 'store = "memory"\n', "photo.jpg": "JPEG"}
MAKES_KEY = "pubsub secret ~/pubsub.key"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the broker, with its master secret."""
    directory = tmp_path_factory.mktemp("broker")
    make_secret(directory / "pubsub.key")
    return directory


@contextmanager
def serving(home: Path) -> Iterator[Broker]:
    """Start a broker with every protocol and HTTP, whose history is in memory."""
    with brokers(home) as start:
        yield start(
            *listen("cafe", "nsd", "rheos", "spot", "fast"),
            f"--admin-port=tcp:0:interface={HOST}",
            f"--secret-file={home / 'pubsub.key'}",
        )


@pytest.fixture(scope="module")
def shared_broker(home: Path) -> Iterator[Broker]:
    """Yield the broker of the pages that show no output."""
    with serving(home) as broker:
        yield broker


@pytest.fixture
def broker(name: str, home: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Yield the broker of a page; one with a new history if the page shows output."""
    if any(block.note == "output" for block in BLOCKS[name]):
        with serving(home) as own:
            yield own
    else:
        yield request.getfixturevalue("shared_broker")


@pytest.mark.parametrize("name", RUN)
def test_the_blocks_of_a_page(name: str, broker: Broker, home: Path, tmp_path: Path) -> None:
    ports = {default: broker.port(protocol) for default, protocol in DEFAULTS.items()}
    page = PageRun(tmp_path, ports)
    for file, content in FILES.items():
        (tmp_path / file).write_text(content)
    if not any(MAKES_KEY in block.text for block in BLOCKS[name]):
        shutil.copy(home / "pubsub.key", tmp_path)
    for block in BLOCKS[name]:
        if block.is_run:
            page.run(block)


@pytest.mark.parametrize("block", MARKED, ids=str)
def test_blocks_that_are_not_run_here_say_why(block: object) -> None:
    """``pytest -v -k not_run`` lists them."""
    note = getattr(block, "note", "")
    kind, _, rest = note.partition(": ")
    if kind == "run by":
        page = Path(str(block).partition(":")[0]).name
        assert page in (ROOT / rest).read_text(), f"{rest} does not mention {page}"
    else:
        assert len(rest.split()) >= 3, f"{block}: give the reason"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```lua\nprint(1)\n```", "mark it: lua cannot be run"),
        ("<!-- runs: never -->\n```sh\ntrue\n```", "no such comment: runs: never"),
        ("```sh\necho no >&2\nfalse\necho yes\n```", "exit code 1\nno"),
        ("```python\nraise SystemExit(3)\n```", "exit code 3"),
        ("```sh\necho a b c\n```\n\n<!-- output -->\n```\na ... d\n```", "got:\na b c"),
        ("```toml\nmax-topicz = 1\n```", "max-topicz: no such setting"),
        ("```json\n{\n```", "Expecting"),
        ("```sh\ntwistd -n pubsub --protocol=x\n```", "option --protocol not recognized"),
        ("```sh\nmake no-such-target\n```", "No rule to make target"),
        ("<!-- run: pytest -->\n```python\ndef test_it():\n    assert 0\n```", "1 failed"),
    ],
)
def test_blocks_that_fail_are_noticed(tmp_path: Path, text: str, message: str) -> None:
    run = PageRun(tmp_path, {})
    *before, last = parse(ROOT / "page.md", text)
    for block in before:
        run.run(block)
    assert last.is_run
    with pytest.raises(AssertionError, match=re.escape(message)):
        run.run(last)


def test_a_shell_keeps_its_variables_and_directory(tmp_path: Path) -> None:
    text = "```sh\nA='x y'\nmkdir d\ncd d\n```\n```sh\necho \"$A\"; basename $PWD; echo 7070\n```\n"
    run = PageRun(tmp_path, {7070: 1234})
    for block in parse(ROOT / "page.md", text + "<!-- output -->\n```\nx y\nd\n1234\n```\n"):
        run.run(block)
