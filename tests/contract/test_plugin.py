"""A third-party protocol: one package and one dropin file, without a change to this package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.toy_plugin import DROPIN, SERVER, Toy, path
from tests.integration.broker import DEFECTS, Broker, Start, listen, run
from tests.integration.clients import Cafe, Nsd, publish


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with the protocol, laid out as a third party would."""
    plugins = tmp_path / "twisted" / "plugins"
    plugins.mkdir(parents=True)
    (plugins / "pubsub_toy.py").write_text(DROPIN)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text("")
    (tmp_path / "toy" / "server.py").write_text(SERVER)
    return tmp_path


def broker(start: Start, home: Path, *options: str) -> Broker:
    """Return a broker with a listener of each of three protocols."""
    return start(
        *listen("toy", "cafe", "nsd"), "--cafe-channels=1:shared", *options, env=path(home)
    )


def assert_help(home: Path) -> None:
    """Check that --help lists the protocol with its setting and its flag."""
    result = run(["--help"], home, env=path(home))
    assert result.returncode == 0
    assert "--toy-max-line " in result.stdout
    assert "--toy-shout" in result.stdout
    protocols = re.findall(r"(?m)^(\w+) \(.*; default port \d+\):$", result.stdout)
    assert {"cafe", "nsd", "toy"} <= set(protocols)
    assert "lines of text; default port 7999" in result.stdout
    assert not any(word in result.stdout + result.stderr for word in DEFECTS)


def test_help_lists_the_protocol(home: Path) -> None:
    assert_help(home)


def test_messages_pass_between_it_and_the_other_protocols(start: Start, home: Path) -> None:
    made = broker(start, home)
    with (
        Toy(made.port("toy")) as toy,
        Cafe.subscriber(made) as subscriber,
        Cafe.publisher(made) as publisher,
        Nsd.to(made) as nsd,
    ):
        assert toy.ask(b"PUB shared from toy") == b"OK"
        assert subscriber.receive_texts(1) == [b"from toy"]
        assert toy.ask(b"SUB shared") == b"OK"
        publisher.send(publish(1, b"from cafe"))
        assert toy.line() == b"shared from cafe"
        nsd.do("Subscribe", "ada", channel="shared")
        assert [(m["from"], m["body"]) for m in nsd.get("ada")] == [
            ("toy", "from toy"), ("", "from cafe"),
        ]  # fmt: skip
        assert toy.ask(b"DANCE") == b"ERR what?"
        made.signal()
        assert toy.line() == b"BYE"
        assert toy.line() == b""


def test_its_own_and_common_settings_take_effect(start: Start, home: Path) -> None:
    made = broker(
        start, home, "--toy-shout", "--toy-max-line=30", "--allow-publish=shared",
        "--max-connections=1",
    )  # fmt: skip
    with Toy(made.port("toy")) as toy:
        assert toy.ask(b"SUB shared") == b"OK"
        assert toy.ask(b"PUB other no") == b"ERR not-authorized"
        with Toy(made.port("toy")) as second:
            assert second.line() == b"ERR limit-reached"
        with Cafe.publisher(made) as publisher:
            publisher.send(publish(1, b"quiet"))
            assert toy.line() == b"SHARED QUIET"
        assert toy.ask(b"x" * 50)[:3] == b"ERR"
    made.wait_line("refused: 1 on toy: not-authorized")


def test_its_settings_can_be_in_a_file(start: Start, home: Path) -> None:
    config = home / "pubsub.toml"
    config.write_text('[toy]\nshout = true\n\n[[listen]]\nprotocol = "toy"\nport = 0\n')
    made = start(f"--config={config}", env=path(home))
    with Toy(made.port("toy")) as toy:
        assert toy.ask(b"SUB a") == b"OK"
        assert {toy.ask(b"PUB a b"), toy.line()} == {b"OK", b"A B"}
    config.write_text("[toy]\nshuot = true\n")
    result = run([f"--config={config}"], home, env=path(home))
    assert result.returncode == 1
    assert result.stderr == f"pubsub: {config}: [toy] shuot: no such setting; did you mean shout?\n"


def test_an_unusable_plugin_cache_is_ignored(home: Path) -> None:
    """Twisted's dropin.cache is a directory, is damaged, or is older than the protocols."""
    plugins = home / "twisted" / "plugins"
    cache = plugins / "dropin.cache"
    # Not even root can read or write a directory as a file.
    cache.mkdir()
    assert_help(home)
    cache.rmdir()
    cache.write_bytes(b"damaged")
    assert_help(home)
    assert_help(home)
    (plugins / "pubsub_toy.py").rename(plugins / "pubsub_toys.py")
    assert_help(home)
    (plugins / "pubsub_toys.py").unlink()
    gone = run(["--help"], home, env=path(home))
    assert gone.returncode == 0
    assert "toy" not in gone.stdout


def test_nothing_of_it_remains_after_removal(home: Path) -> None:
    """Without that directory on the path the protocol is unknown."""
    result = run(["--proto=toy"], home)
    assert result.returncode == 1
    assert result.stderr.startswith("pubsub: protocol 'toy' is not installed")
