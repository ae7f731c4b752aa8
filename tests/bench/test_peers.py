"""The comparison with other brokers: its wires, turns and tables, and a short run of it."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench import BenchError, idle, steady, throughput, traffic
from tests.bench.broker import Broker
from tests.bench.peers import __main__ as peers_command
from tests.bench.peers import contenders as contenders_module
from tests.bench.peers import live, sections
from tests.bench.peers.__main__ import parse
from tests.bench.peers.contenders import (
    Contender,
    libzmq,
    ours,
    server_named,
    start_proxy,
    start_server,
)
from tests.bench.peers.docs import millions, replace, table
from tests.bench.peers.kept import Figures, Kept, measure_rows
from tests.bench.peers.rounds import Results, take_turns
from tests.bench.rows import Row, live_rows
from tests.bench.traffic_rows import IN_TURN
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
        ("zmq", b"\x01\x09bench/003\0\x04"),
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
        ("mqtt", bytes.fromhex("20 02 00 00 90 05 00 01 00 00 00")),
        ("resp", b"".join(b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:%d\r\n" % n for n in (1, 2, 3))),
    ],
)
def test_each_topic_of_a_hello_is_confirmed(name: str, answer: bytes) -> None:
    wire = PEER_WIRES[name]
    assert wire.welcomed(answer, 3)
    assert [wire.welcomed(answer[:end], 3) for end in range(len(answer))].count(True) == 0


def test_a_subscription_of_nats_has_the_number_of_its_topic() -> None:
    wire = PEER_WIRES["nats"]
    assert b"SUB bench.3 3\r\nSUB bench.14 14\r\n" in wire.subscriber_hello([3, 14], "")
    assert wire.delivery(14, 5).before == b"MSG bench.14 14 5\r\n"


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


ROWS = [Row("a", [[(0, 64)]]), Row("b", [[(0, 64)]])]


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


class TestKept:
    """Results in a file"""

    def measured(self, kept: Kept, names: Sequence[str], rate: float, rounds: int = 1) -> list[str]:
        """Return the cells that were measured."""
        contenders = [Contender(name, PEER_WIRES["nats"], Silent) for name in names]
        cells = []

        def measure(broker: Broker, who: Contender, row: Row) -> Figures:
            cells.append(f"{row}: {who.name}")
            return {} if who.name == "cannot" else {"rate": rate}

        assert measure_rows(kept, "traffic", ROWS, contenders, rounds, measure) == []
        return cells

    def test_a_run_adds_to_an_earlier_one(self, tmp_path: Path) -> None:
        path = tmp_path / "results"
        self.measured(Kept(path, "here"), ["one"], 1.0)
        self.measured(Kept(path, "here"), ["two"], 2.0)
        kept = Kept(path, "here")
        results = kept.results("traffic")
        assert [results.median(name, "b", lambda run: run["rate"]) for name in ("one", "two")] == [
            1.0,
            2.0,
        ]
        both = [Contender(name, PEER_WIRES["nats"], Silent) for name in ("one", "two", "three")]
        assert kept.missing("traffic", ROWS, both[:2]) == 0
        assert kept.missing("traffic", ROWS, both) == 2
        assert kept.missing("stored", ROWS, both) == 6

    def test_the_last_figures_of_a_run_count(self, tmp_path: Path) -> None:
        path = tmp_path / "results"
        self.measured(Kept(path, "here"), ["one"], 1.0, rounds=3)
        assert len(Kept(path, "here").results("traffic").of("one", "a")) == 3
        self.measured(Kept(path, "here"), ["one"], 3.0)
        assert Kept(path, "here").results("traffic").of("one", "a") == [{"rate": 3.0}]

    def test_only_the_rest_is_measured_on_resume(self, tmp_path: Path) -> None:
        path = tmp_path / "results"
        self.measured(Kept(path, "here"), ["one", "cannot"], 1.0)
        resumed = Kept(path, "here", resume=True)
        assert self.measured(resumed, ["one", "cannot", "two"], 2.0) == ["a: two", "b: two"]
        assert resumed.results("traffic").of("cannot", "a") == []

    def test_results_of_another_environment_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "results"
        Kept(path, "here")
        with pytest.raises(BenchError, match="another environment"):
            Kept(path, "there")
        path.write_text(path.read_text() + '["traffic", "a"')
        with pytest.raises(BenchError, match="not readable"):
            Kept(path, "here")


class TestOptions:
    """The command line"""

    def test_the_rows_of_applications_come_first(self) -> None:
        assert parse([]).sections == ["traffic", "stored"]
        assert parse(["single"]).sections == ["single"]

    @pytest.mark.parametrize("arguments", [["nothing"], ["--rows", "no such row"]])
    def test_mistakes_are_refused(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit):
            parse(arguments)

    def test_contenders_are_chosen_by_name(self) -> None:
        names = [one.name for one in live.our_contenders(parse(["--interpreted"]))]
        assert names == [
            *("cafe", "cafe, stored", "cafe, interpreted", "rheos", "fast", "spot", "nsd"),
        ]
        assert "cafe, interpreted" not in [one.name for one in live.our_contenders(parse([]))]


def test_the_table_of_traffic() -> None:
    results: Results[Figures] = Results()
    row = next(iter(live_rows())).name
    for name, rate in (("nats-server 2.15.1", 2e6), ("cafe", 8e6), ("fast", 4e6)):
        results.runs[name, row].append({"rate": rate, "idle": 0.5 if name == "fast" else 0.0})
    assert live.traffic_table(results, ["nats-server 2.15.1", "redis", "cafe"]).splitlines() == [
        "| million deliveries / CPU s | nats-server 2.15.1 | cafe | fast | cafe / best other |",
        "| --- | ---: | ---: | ---: | ---: |",
        f"| {row} | 2.00 | 8.00 | 4.00* | 4.00 |",
    ]


def test_a_missing_broker_is_named_and_the_page_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = contenders_module.Server("no-such-broker", "nats", [], "")
    monkeypatch.setattr(contenders_module, "SERVERS", (absent,))
    monkeypatch.setattr(peers_command, "log_contenders", lambda _: ([], {}))
    page = tmp_path / "page.md"
    arguments = [f"--results={tmp_path / 'results'}", f"--docs={page}", "--only=no-such"]
    comparison = peers_command.Comparison(parse(["traffic", *arguments]))
    comparison.run()
    assert comparison.failures == ["no-such-broker is not installed; run: scripts/setup dev"]
    assert "not measured: no-such-broker is not installed" in capsys.readouterr().err
    assert not page.exists()


def test_a_complete_table_is_written_into_both_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(contenders_module, "SERVERS", ())
    monkeypatch.setattr(peers_command, "log_contenders", lambda _: ([], {}))
    page, readme, results = (tmp_path / name for name in ("page", "readme", "results"))
    page.write_text(
        "<!-- peers: environment -->\n<!-- end -->\n<!-- peers: traffic -->\n<!-- end -->\n"
    )
    readme.write_text("<!-- peers: summary -->\n<!-- end -->\n")
    pages = [f"--results={results}", f"--docs={page}", f"--readme={readme}"]
    options = parse(["traffic", "--resume", *pages])
    kept = Kept(results, peers_command.about(options))
    for one in (libzmq(), *live.our_contenders(options)):
        for row in live_rows():
            kept.put("traffic", row.name, one.name, 0, {"rate": 2e6, "idle": 0.0})
    comparison = peers_command.Comparison(options)
    comparison.run()
    assert comparison.failures == []
    assert "| 1 to 1, 64 B | 2.00 | 2.00 |" in readme.read_text()
    assert f"| 1 to 1, 64 B {7 * '| 2.00 '}| 1.00 |" in page.read_text()
    assert "Twisted" in page.read_text()


LONE = Row("lone", [[(0, 64)]] * 3, [(0, frozenset({0}))], lone=2)


@pytest.mark.parametrize("program", ["mosquitto", "redis-server", "nats-server", "libzmq"])
@pytest.mark.parametrize("row", [IN_TURN, LONE], ids=str)
def test_a_wire_with_its_broker(program: str, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (throughput, traffic):
        monkeypatch.setattr(module, "WARM_UP_SECONDS", 0.05)
    if program == "libzmq":
        wire, broker = PEER_WIRES["zmq"], start_proxy()
    else:
        server = server_named(program)
        wire, broker = PEER_WIRES[server.wire], start_server(server)
    with broker:
        assert traffic.measure(broker, wire, row, seconds=0.1).deliveries > 0


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
