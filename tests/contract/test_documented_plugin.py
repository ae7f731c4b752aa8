"""The example protocol of docs/protocols.md: served, published to, and decoded."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

from tests.contract.toy_plugin import Toy, path
from tests.integration.broker import HOST, Start, listen, run_python
from tests.integration.clients import Nsd

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
_FILES = re.compile(
    r"`([\w/]+\.py)`:\n\n(?:<!--.*?-->\n)?```python\n(.*?)^```", re.DOTALL | re.MULTILINE
)
CLIENT = """
import json, sys
from pubsub.pipeline.options.connector_options import sink_options
from pubsub.pipeline.jobs.dissect import dissect, dissectors
from pubsub.pipeline.publishing.publisher_urls import client_options, find_destination
from pubsub.client import NotPublished
from pubsub.client.blocking import connect

with find_destination(sink_options({"url": sys.argv[1]}, client_options())).publishers() as toy:
    toy.add("news", b"one")
    toy.add("news", b"two")
    toy.finish()
with connect(sys.argv[1]) as client, client.subscribe("news") as messages:
    client.publish("news", b"three", confirm=True)
    received = messages.next(30).payload.decode()
with find_destination(sink_options({"url": sys.argv[1]}, client_options())).publishers() as toy:
    toy.add("forbidden", b"three")
    try:
        toy.finish()
    except NotPublished as error:
        refused = str(error)
found = dissect(dissectors(), "toy", b"DANCE now")
print(json.dumps([received, refused, found.fields, found.understood, found.fault]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with the files of the page."""
    files = dict(_FILES.findall(PAGE.read_text()))
    assert list(files) == ["pubsub_toy.py", "toy/server.py", "toy/client.py", "toy/malformed.py"]
    plugins = tmp_path / "twisted" / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "pubsub_toy.py").write_text(files.pop("pubsub_toy.py"))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text("")
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    return tmp_path


def test_it_is_served_with_the_limits_of_every_listener(start: Start, home: Path) -> None:
    made = start(*listen("toy"), "--rate-messages=2", env=path(home))
    with Toy(made.port("toy")) as subscriber, Toy(made.port("toy")) as publisher:
        assert subscriber.ask(b"SUB news") == b"OK"
        # One read, so that no time passes between the messages.
        publisher.send(b"".join(b"PUB news %d\n" % number for number in range(4)))
        limited = b"ERR rate-limited"
        assert [publisher.line() for _ in range(4)] == [b"OK", b"OK", limited, limited]
        assert [subscriber.line() for _ in range(2)] == [b"0", b"1"]
        publisher.send(b"x" * 1001)
        assert publisher.line() == b"ERR too-long"


def test_a_url_selects_it(start: Start, home: Path) -> None:
    made = start(*listen("toy"), "--allow-publish=news", env=path(home))
    output = run_python(CLIENT, f"toy://{HOST}:{made.port('toy')}", env=path(home))
    received, refused, fields, understood, fault = json.loads(output)
    assert received == "three"
    assert refused.endswith("a message refused: ERR not-authorized")
    assert (fields, understood) == ({"verb": "DANCE"}, 5)
    assert fault == "no request 'DANCE' of this form"
    made.wait_line("refused: 1 on toy: not-authorized")


def test_its_secrets_are_redacted_on_every_listener(start: Start, home: Path) -> None:
    made = start(*listen("nsd", "toy"), "--events", "--grant=$SYS/events", env=path(home))
    with Nsd.to(made) as reader, Toy(made.port("nsd")) as client:
        reader.do("Subscribe", "ada", channel="$SYS/events")
        client.ask(b"LOGIN PassWord=hunter2")
        events = [json.loads(message["body"]) for message in reader.get("ada")]
    shown = [base64.b64decode(each["frame"]) for each in events if each["event"] == "malformed"]
    assert shown == [b"LOGIN "]
