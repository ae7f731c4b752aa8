"""fast with real processes: twistd, the command pubsub, files, signals, sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from tests.integration.broker import Broker, Start, listen, run
from tests.integration.clients import Cafe, Nsd, handshake_sub, message
from tests.integration.clients import publish as cafe_publish
from tests.integration.fast_client import (
    KEY_UPDATE,
    NEWS,
    Fast,
    Packet,
    create,
    make_secret,
    make_token,
    publish,
    pubsub,
    rotate,
    subscribe,
)
from tests.integration.one_line import assert_one_line

ENDED = (0x02, 9)
BAD_TOKEN = 1


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    return make_secret(tmp_path / "secret")


@pytest.mark.modes
def test_from_nothing_to_a_message(start: Start, tmp_path: Path) -> None:
    """The steps of the documentation: a secret, a broker, tokens, a message."""
    made = pubsub("secret", str(tmp_path / "secret"))
    (option,) = re.findall(r"--secret-file \S+", made.stdout)
    broker = start(*listen("fast", "cafe"), *option.split(), "--cafe-channels=1:news")
    secret = tmp_path / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    owner = make_token(secret, "--sub=ada")
    reader = make_token(secret, permission="subscribe")
    with (
        Fast.to(broker, create(owner)) as ada,
        Fast(broker.port("fast")) as bob,
        Cafe(broker.port("cafe")) as cafe,
    ):
        assert ada.sync(owner) == []
        bob.send(subscribe(reader))
        assert bob.sync(reader) == []
        ada.send(publish(owner, b"hi", b"", bytes(100_000)))
        assert bob.texts(3) == [b"hi", b"", bytes(100_000)]
        bob.send(publish(reader, b"no"))
        assert bob.error() == (0x03, 3)
        cafe.send(handshake_sub())
        assert cafe.receive() == (0x03, b"\x08" + bytes(8))
        ada.send(rotate(owner, b"k2"))
        assert bob.receive() == Packet(KEY_UPDATE, NEWS, b"k2")
        ada.send(publish(owner, b"old"))
        assert ada.error() == (0x03, 2)


def test_grant(start: Start, secret: Path, tmp_path: Path) -> None:
    config = tmp_path / "pubsub.toml"
    config.write_text(
        f'secret-file = "{secret}"\n'
        '[[listen]]\nprotocol = "fast"\nport = 0\n'
        '[[listen]]\nprotocol = "cafe"\nport = 0\nchannels = "1:news"\ngrant = "ne*"\n'
        '[[listen]]\nprotocol = "nsd"\nport = 0\n'
    )
    broker = start(f"--config={config}")
    owner = make_token(secret, "--sub=ada")
    with (
        Fast.to(broker, create(owner), subscribe(owner)) as ada,
        Cafe.publisher(broker) as cafe,
        Nsd.to(broker) as nsd,
    ):
        assert ada.sync(owner) == []
        cafe.send(cafe_publish(1, b"granted"))
        assert ada.texts(1) == [b"granted"]
        assert nsd.refused("Open", "news") == "NOT AUTHORIZED: news"
        assert nsd.refused("Subscribe", "bob", channel="news") == "NOT AUTHORIZED: news"
        assert nsd.get("news") == []
        nsd.do("Open", "elsewhere")
        nsd.do("Publish", "elsewhere", message=message("open"))


def test_sighup_adds_and_removes_secrets(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "pubsub.toml"
    secrets = {name: make_secret(tmp_path / name) for name in ("first", "second")}
    tokens = {name: make_token(path, f"--kid={name}") for name, path in secrets.items()}

    def configure(*names: str, extra: str = "") -> None:
        keys = "".join(f'[keys.{n}]\nsecret-file = "{secrets[n]}"\n' for n in names)
        config.write_text(f'{extra}\n[[listen]]\nprotocol = "fast"\nport = 0\n{keys}')

    configure("first")
    broker = start(f"--config={config}", f"--audit-log={tmp_path / 'audit.log'}")
    with Fast.to(broker, create(tokens["first"])) as one, Fast(broker.port("fast")) as two:
        one.send(subscribe(tokens["first"]))
        assert one.sync(tokens["first"]) == []
        two.send(subscribe(tokens["second"]))
        assert two.error() == (0x02, BAD_TOKEN)

        configure("first", "second")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line("reloaded: subscriptions kept: 1, ended: 0")
        two.send(subscribe(tokens["second"]))
        assert two.sync(tokens["second"]) == []

        configure("second")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line("reloaded: subscriptions kept: 1, ended: 1")
        assert one.error() == ENDED
        one.send(publish(tokens["first"], b"x"))
        assert one.error() == (0x03, BAD_TOKEN)
        two.send(publish(tokens["second"], b"y"))
        assert two.texts(1) == [b"y"]

        configure(extra="histroy = 5")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line(f"reload failed, nothing is changed: {config}: histroy")
        two.send(publish(tokens["second"], b"z"))
        assert two.texts(1) == [b"z"]
    records = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    reloads = [r for r in records if r["event"] == "reload"]
    assert [(r["secrets_added"], r["secrets_removed"]) for r in reloads] == [
        (["second"], []), ([], ["first"]),
    ]  # fmt: skip


def test_sighup_ends_denied_subscriptions(start: Start, secret: Path, tmp_path: Path) -> None:
    denied = tmp_path / "denied"
    denied.write_text("# nobody yet\n")
    broker = start(*listen("fast"), f"--secret-file={secret}", f"--token-deny-file={denied}")
    ada, bob = make_token(secret, "--sub=ada"), make_token(secret, "--sub=bob")
    with Fast.to(broker, create(ada), subscribe(ada)) as one, Fast(broker.port("fast")) as two:
        assert one.sync(ada) == []
        two.send(subscribe(bob))
        assert two.sync(bob) == []
        denied.write_text("sub ada\n")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line("reloaded: subscriptions kept: 1, ended: 1")
        assert one.error() == ENDED
        one.send(publish(ada, b"x"))
        assert one.error() == (0x03, BAD_TOKEN)
        two.send(publish(bob, b"y"))
        assert two.texts(1) == [b"y"]
        denied.write_text("ada\n")
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line("reload failed, nothing is changed: token-deny-file: .* line 1: expected")
        two.send(publish(bob, b"z"))
        assert two.texts(1) == [b"z"]


def test_a_subscription_ends_with_its_token(start: Start, secret: Path) -> None:
    broker = start(*listen("fast"), f"--secret-file={secret}")
    owner = make_token(secret)
    with Fast.to(broker, create(owner)) as ada, Fast(broker.port("fast")) as bob:
        assert ada.sync(owner) == []
        ends = int(time.time()) + 4
        short = make_token(secret, "--expires=4s", permission="subscribe")
        bob.send(subscribe(short))
        assert bob.sync(owner) == []
        ada.send(publish(owner, b"in time"))
        assert bob.texts(1) == [b"in time"]
        assert bob.error() == ENDED
        assert time.time() >= ends
        ada.send(publish(owner, b"late"))
        assert ada.sync(owner) == bob.sync(owner) == []


def test_the_audit_log(start: Start, secret: Path, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    broker = start(
        *listen("fast"), f"--secret-file={secret}", f"--audit-log={path}", "--audit-size=600"
    )
    with Fast(broker.port("fast")) as ada:
        token = make_token(secret, "--sub=ada", key="k0")
        ada.send(create(token), rotate(token, b"k1"))
        for number in range(1, 12):
            token = make_token(secret, "--sub=ada", key=f"k{number}")
            ada.send(rotate(token, b"k%d" % (number + 1)))
        assert ada.sync(token) == []
    files = sorted(tmp_path.glob("audit.log*"))
    assert len(files) > 3
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_size <= 600 + 300
    records = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(r["event"] for r in records) == ["create"] + ["rotate"] * 12
    assert {(r["subject"], r["topic"]) for r in records} == {("ada", "news")}
    assert "audit" not in broker.output


def test_no_secret_key_or_token_is_written_anywhere(
    start: Start, secret: Path, tmp_path: Path
) -> None:
    config = tmp_path / "pubsub.toml"
    config.write_text(f'secret-file = "{secret}"\n[[listen]]\nprotocol = "fast"\nport = 0\n')
    words: list[str] = [secret.read_text().strip()]
    for audit in ([], [f"--audit-log={tmp_path / 'audit.log'}"]):
        broker = start(f"--config={config}", *audit)
        use_and_misuse(broker, secret, words)
        os.kill(broker.pid, signal.SIGHUP)
        broker.wait_line("reloaded: ")
        broker.stop()
        written = broker.output + "".join(p.read_text() for p in tmp_path.glob("audit.log*"))
        assert "rotate" in written
        assert "refused: " in written
        for word in words:
            assert word not in written


def use_and_misuse(broker: Broker, secret: Path, words: list[str]) -> None:
    """Send valid and invalid requests; ``words`` collects the texts that must not be logged."""
    owner = make_token(secret, "--sub=ada", key="hush-hush-1")
    other = make_token(secret, key="hush-hush-2")
    expired = make_token(secret, "--expires=0s", key="hush-hush-1")
    words += ["hush-hush", "be-quiet"]
    words += [token.decode() for token in (owner, other, expired)]
    words += [token.decode().rpartition(".")[2] for token in (owner, other, expired)]
    with Fast.to(broker, create(owner), subscribe(owner)) as ada, Fast(broker.port("fast")) as eve:
        for raw in (other, expired, owner[:-5], b"hush-hush"):
            eve.send(create(raw), subscribe(raw), publish(raw, b"x"))
        eve.send(create(owner, flags=9), rotate(owner, b""), rotate(owner, b"be-quiet"))
        assert eve.sync(other)
        assert ada.receive().data == b"be-quiet"
        eve.send(b"\x00" + owner)
        while eve.receive().code != 10:
            pass
        assert eve.at_end()


def test_without_a_secret_the_other_protocols_start(start: Start, tmp_path: Path) -> None:
    # A loopback address of its own, where the default ports are free.
    number = os.getpid()
    interface = f"127.{100 + (number >> 14) % 100}.{(number >> 7) % 128}.{1 + number % 128}"
    broker = start(f"--interface={interface}")
    said = [line for line in broker.output.splitlines() if "fast" in line]
    assert len(said) == 1
    assert "fast: not served: " in said[0]
    assert "pubsub secret FILE" in said[0]
    assert "--secret-file FILE" in said[0]
    for name, port in (("cafe", 7070), ("nsd", 7071), ("rheos", 7072), ("spot", 7073)):
        assert f"{name} on tcp {interface}:{port}\n" in broker.output


def test_fast_alone_without_a_secret_does_not_start(tmp_path: Path) -> None:
    for options in (["--proto=fast", "--port=0"], listen("cafe", "fast")):
        result = run(options, tmp_path)
        assert_one_line(result, "pubsub secret FILE")
        assert "--secret-file FILE" in result.stderr
        assert not list(tmp_path.iterdir())


def test_a_secret_on_the_command_line_is_refused(tmp_path: Path) -> None:
    word = "correct-horse-battery-staple-and-more"
    for options in ([f"--secret={word}"], ["--secret", word]):
        result = run([*options, *listen("fast")], tmp_path)
        assert_one_line(result, "--secret-file")
        assert word not in result.stdout + result.stderr
    config = tmp_path / "pubsub.toml"
    config.write_text(f'[keys.main]\nsecret = "{word}"\n')
    result = run([f"--config={config}"], tmp_path)
    assert_one_line(result, "[keys.main]")
    assert word not in result.stderr


def test_a_weak_secret_is_refused_unless_allowed(start: Start, tmp_path: Path) -> None:
    weak = tmp_path / "weak"
    weak.write_text("short and simple\n")
    weak.chmod(0o600)
    options = [*listen("fast"), f"--secret-file={weak}"]
    result = run(options, tmp_path)
    assert_one_line(result, "holds 16 bytes, fewer than 32")
    assert "--allow-weak-secret" in result.stderr
    assert "short and simple" not in result.stderr
    broker = start(*options, "--allow-weak-secret")
    token = make_token(weak)
    with Fast.to(broker, create(token)) as ada:
        assert ada.sync(token) == []


def test_unusable_secret_files(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path, about in (
        (tmp_path / "nowhere", "No such file"), (tmp_path, "directory"), (empty, "0 bytes"),
    ):  # fmt: skip
        assert_one_line(run([*listen("fast"), f"--secret-file={path}"], tmp_path), about)
    assert_one_line(
        run([*listen("fast"), f"--secret-file={empty}", "--allow-weak-secret"], tmp_path), "empty"
    )


def test_a_secret_that_others_can_read_is_reported(start: Start, secret: Path) -> None:
    secret.chmod(0o644)
    broker = start(*listen("fast"), f"--secret-file={secret}")
    assert "can be read by others" in broker.output
