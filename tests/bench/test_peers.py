"""The comparison with other brokers: its wires, turns and tables, and a short run of it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import BenchError, idle, steady, throughput
from tests.bench.broker import Broker
from tests.bench.peers import sections
from tests.bench.peers.contenders import Contender, libzmq, ours
from tests.bench.peers.docs import millions, replace, table
from tests.bench.peers.logs import Marked
from tests.bench.peers.rounds import take_turns
from tests.bench.wires import PEER_WIRES, Wire
from tests.bench.wires.zmq import ready


@pytest.mark.parametrize("wire", PEER_WIRES.values(), ids=PEER_WIRES)
@pytest.mark.parametrize("payload", [16, 64, 1024, 65_000, 1 << 20])
def test_frames_hold_the_payload_and_its_length(wire: Wire, payload: int) -> None:
    for frame in (wire.publication(3, payload), wire.delivery(3, payload)):
        assert frame.size == len(frame.before) + payload + len(frame.after)
        assert frame.head == frame.before
        assert b"3" in frame.before


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("mqtt", b"\x30\x0d\0\x07bench/3"),
        ("nats", b"PUB bench.3 4\r\n"),
        ("resp", b"*3\r\n$7\r\nPUBLISH\r\n$7\r\nbench/3\r\n$4\r\n"),
        ("zmq", b"\x01\x07bench/3\0\x04"),
    ],
)
def test_frames_of_publications(name: str, before: bytes) -> None:
    assert PEER_WIRES[name].publication(3, 4).before == before


WELCOMES = {
    "mqtt": bytes.fromhex("20 02 00 00 90 03 00 01 00"),
    "nats": b'INFO {"server_id":"x"}\r\nPONG\r\n',
    "resp": b"*3\r\n$9\r\nsubscribe\r\n$7\r\nbench/0\r\n:1\r\n",
    "zmq": b"\xff" + bytes(8) + b"\x7f\3\1NULL" + bytes(48) + ready(b"XPUB"),
}


@pytest.mark.parametrize("name", PEER_WIRES)
def test_only_the_complete_reply_is_a_welcome(name: str) -> None:
    answer = WELCOMES[name]
    assert PEER_WIRES[name].welcomed(answer)
    for end in range(len(answer)):
        assert not PEER_WIRES[name].welcomed(answer[:end])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("mqtt", bytes.fromhex("20 02 00 05")),
        ("nats", b"-ERR 'Authorization Violation'\r\n"),
        ("resp", b"-ERR unknown command\r\n"),
        ("zmq", b"\xff" + bytes(8) + b"\x7f\1\0"),
    ],
)
def test_a_refusal_is_reported(name: str, answer: bytes) -> None:
    with pytest.raises(BenchError):
        PEER_WIRES[name].welcomed(answer)


def test_sections_are_written_between_their_marks() -> None:
    text = "a\n<!-- peers: x -->\nold\n<!-- end -->\nb\n<!-- peers: y -->\n<!-- end -->\n"
    once = replace(text, "x", "new\\1")
    assert "old" not in once
    assert "<!-- peers: x -->\n\nnew\\1\n\n<!-- end -->\nb\n" in once
    assert replace(once, "x", "new\\1") == once
    with pytest.raises(BenchError, match="0 places"):
        replace(text, "z", "")


def test_tables_and_rates_are_formatted() -> None:
    assert table(["a", "b"], [["c", "1"]]) == "| a | b |\n| --- | ---: |\n| c | 1 |"
    assert [millions(rate) for rate in (11_512_000, 270_000, 8_000)] == ["11.5", "0.270", "0.00800"]


class Silent(Broker):
    """A broker without a process."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_turns_alternate_and_a_failure_leaves_a_gap() -> None:
    wire = PEER_WIRES["nats"]
    names = ["one", "other", "broken", "absent"]
    contenders = [Contender(name, wire, Silent) for name in names]
    order: list[str] = []

    def measure(broker: Broker, who: Contender, column: object) -> int | None:
        order.append(who.name)
        if who.name == "broken":
            raise BenchError("on purpose")
        return None if who.name == "absent" else len(order)

    results = take_turns(contenders, ["column"], 3, measure)
    assert order == names[::-1] + names + names[::-1]
    assert results.names(contenders) == ["one", "other"]
    assert results.of("one", "column") == [4, 5, 12]
    assert results.median("one", "column", float) == 5
    assert results.median("broken", "column", float) is None
    assert len(results.failures) == 3


@pytest.fixture
def contenders(monkeypatch: pytest.MonkeyPatch) -> list[Contender]:
    """Return two brokers, one that pushes messages and one that is polled, without warm-up."""
    for module, name in ((throughput, "WARM_UP_SECONDS"), (steady, "WARM_UP_SECONDS"),
                         (idle, "IDLE_SECONDS")):  # fmt: skip
        monkeypatch.setattr(module, name, 0.05)
    twistd = Path(sys.executable).with_name("twistd")
    return [libzmq(), *ours(twistd, ["cafe", "nsd"])]


def test_a_short_comparison(contenders: list[Contender]) -> None:
    options = Namespace(rounds=1, seconds=0.1, connections=100)
    columns = [sections.SMALL[0], sections.SMALL[-1], sections.SINGLE[0]]
    results = sections.rates(contenders, columns, options)
    idles = sections.idle(contenders, options)
    paced = sections.steady(contenders, options)
    assert results.failures + idles.failures + paced.failures == []
    names = [who.name for who in contenders]
    for text in (
        sections.rate_table(results, contenders, columns, idles),
        sections.single_table(results, contenders, columns),
        sections.steady_table(paced, contenders),
    ):
        rows = [line.split(" | ") for line in text.splitlines()[2:]]
        assert [row[0].removeprefix("| ") for row in rows] == names
        assert not [cell for row in rows for cell in row if cell.strip(" |") in ("-", "nan")]
    ratios = sections.ratio_table(results, contenders, columns).splitlines()[2:]
    assert [line.split(" | ")[0] for line in ratios] == [
        "| cafe / best of the others",
        "| nsd / best of the others",
        f"| nsd / {names[0]}",
    ]


def test_acknowledgments_are_distinguished_from_errors() -> None:
    count: Callable[[bytes], int] = Marked(b"$", b"-ERR")
    assert count(b"$15\r\n1700000000000-0\r\n$1") == 2
    with pytest.raises(BenchError, match="not stored"):
        count(b"-ERR full\r\n")
