"""Templates of nsd publishes: sliced bodies equal those of parsed lines."""

from __future__ import annotations

import base64

from hypothesis import assume, example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.nsd.codec import begins_binary
from pubsub.protocols.nsd.message_heads import MAX_TEXT, PublishLearner, Source
from tests.unit import nsd_lines as wire
from tests.unit.nsd_lines import SUCCESS, Nsd

MESSAGE = b'{"_class":"Message","from":"a","when":0,'
BEFORE = b'{"_class":"PublishRequest","identity":"ada","message":' + MESSAGE
START, END = BEFORE + b'"body":"', b'"}}\n'
ODD = (b'"', b"\\", b"\\n", b'\\"', b"\n", b"\r", b"\0", b"\xff", b"\xc3", b"\xbc", "ü".encode())
BODIES = st.lists(st.sampled_from([b"a", b"b ", b"}}", *ODD]), max_size=5).map(b"".join)
STARTS = st.sampled_from(
    [START] * 5
    + [
        BEFORE + b'"body": "',
        START.replace(b"ada", b"ben"),
        START.replace(b'"a"', b'"b"'),
        BEFORE + b'"x":{"body":"y"},"body":"',
        BEFORE + b'"body":"first","x":"',
        BEFORE + b'"body":"first","body":"',
        BEFORE + b'"body":3,"x":"\\"body\\":\\"","body":"',
        BEFORE + b'"body":"z","x":{"body":"',
    ]
)
ENDS = st.sampled_from(
    [END] * 5 + [b'"}}\r\n', b'","y":1}}\n', b'","body":"last"}}\n', b'"}}}\n', b'"}\n', b'"}} \n']
)
LINES = st.lists(st.tuples(STARTS, BODIES, ENDS).map(b"".join), min_size=2, max_size=4)


def learnt(line: bytes) -> Source | None:
    """Return the source of ``line`` once it was seen twice."""
    learner = PublishLearner()
    learner.max_body = 10
    assert learner.learn(line, 0) is None
    found = learner.learn(line, 0)
    if found is None:
        return None
    head, source = found
    assert line.startswith(head.before)
    assert line.endswith(head.after)
    assert head.limit == 10
    return source


def there(nsd: Nsd) -> list[tuple[str, str, object]]:
    """Return all published messages by channel: sender, body and the names of the fields."""
    lists = [nsd.ask(wire.get(name))[0]["messages"] for name in ("ada", "ben")]
    return [(m["from"], m["body"], sorted(m)) for found in lists for m in found]


class MeaningTests(SynchronousTestCase):
    """Many lines in one read, compared with one connection for each line"""

    @given(LINES, st.integers(1, 3), st.integers(1, 500))
    @example([START + b"a" + END] * 4, 1, 500)
    @example([START + b"a" + END, START + b"\xc3" + END, START + b"\xbc" + END], 3, 500)
    def test_lines_of_one_read_mean_the_same_as_single_lines(
        self, lines: list[bytes], times: int, cut: int
    ) -> None:
        sent = b"".join(lines * times)
        # One that begins with such a line is not served, nor one with a line of a PROXY header.
        assume(not any(map(begins_binary, _lines(sent))))
        together, alone = Nsd(), Nsd()
        for nsd in (together, alone):
            nsd.ask(wire.open_("ada"), wire.open_("ben"))
        client = together.connect("nsd")
        for at in range(0, len(sent), cut):
            client.send(sent[at : at + cut])
        answers = b""
        for line in _lines(sent):
            single = alone.connect("nsd")
            single.send(line)
            answers += single.take()
        assert client.take() == answers
        assert there(together) == there(alone)
        assert together.broker.counters.refusals == alone.broker.counters.refusals

    def test_lines_of_one_read_are_one_batch(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        texts = [f"{number}" for number in range(100)]
        client.send(wire.open_("ada") + b"".join(START + text.encode() + END for text in texts))
        assert client.take() == SUCCESS * 101
        # One line is parsed before its text is known.
        assert len(client.stream.writes) == 3
        client.send(wire.get("ada"))
        assert wire.bodies(client.take()) == texts

    def test_lines_to_several_channels_are_one_batch(self) -> None:
        nsd = Nsd()
        client = nsd.connect("nsd")
        starts = [START, START.replace(b"ada", b"ben")]
        client.send(
            wire.open_("ada") + wire.open_("ben") + b"".join(start + b"0" + END for start in starts)
        )
        client.take()
        writes = len(client.stream.writes)
        client.send(b"".join(starts[n % 2] + b"%d" % n + END for n in range(1, 100)))
        assert client.take() == SUCCESS * 99
        assert len(client.stream.writes) == writes + 1
        client.send(wire.subscribe("ada", "ben") + wire.get("ada"))
        assert wire.bodies(client.take().removeprefix(SUCCESS)) == ["0", *map(str, range(100))]

    def test_each_message_has_its_attachments(self) -> None:
        nsd = Nsd()
        lines = [wire.publish("ada", str(number), file={"a": [1]}) for number in range(5)]
        *_, found = nsd.ask(wire.open_("ada"), *lines, wire.get("ada"))
        assert [(m["body"], m["file"]) for m in found["messages"]] == [
            (str(number), {"a": [1]}) for number in range(5)
        ]


class RefusalTests(SynchronousTestCase):
    """Publishes with a template are refused like single ones"""

    def test_messages_over_the_rate(self) -> None:
        nsd = Nsd(rate_messages=10)
        client = nsd.connect("nsd")
        client.send(wire.open_("ada") + b"".join(START + b"%d" % n + END for n in range(15)))
        late = wire.error("RATE LIMIT EXCEEDED")
        answers = client.take()
        assert answers == SUCCESS * answers.count(SUCCESS) + late * answers.count(late)
        refused = answers.count(late)
        assert 0 < refused < 15
        assert nsd.broker.counters.refusals == {("nsd", "rate-limited"): refused}
        assert len(there(nsd)) == 15 - refused

    def test_a_message_that_is_too_large(self) -> None:
        nsd = Nsd(max_body=3)
        texts = ["a", "b", "c", "üüü", "dddd", "e"]
        client = nsd.connect("nsd")
        client.send(wire.open_("ada") + b"".join(START + text.encode() + END for text in texts))
        big = wire.error("MESSAGE TOO BIG: 4 characters")
        assert client.take() == SUCCESS * 5 + big + SUCCESS

    def test_base64_and_other_requests_in_between(self) -> None:
        nsd = Nsd()
        line = START + b"a" + END
        coded = base64.b64encode(line) + b"\n"
        client = nsd.connect("nsd")
        client.send(wire.open_("ada") + line * 3 + coded + line + b"x\n" + line)
        answers = client.take().splitlines(keepends=True)
        assert answers[:4] == [SUCCESS] * 4
        assert base64.b64decode(answers[4]) + b"\n" == SUCCESS
        assert answers[5:] == [SUCCESS, wire.error("INVALID REQUEST: [x]"), SUCCESS]


class LearningTests(SynchronousTestCase):
    """Publishes whose heads are learnt, and those whose heads are not"""

    def test_a_publish_that_was_seen_twice(self) -> None:
        assert learnt(START + b"a" + END) == Source("ada", b"a")
        with_extra = START + b'a","x":[1]}}\r\n'
        assert learnt(with_extra) == Source("ada", b"a", (("x", b"[1]"),))

    def test_each_text_must_be_seen_twice(self) -> None:
        learner = PublishLearner()
        learner.max_body = 10
        lines = [START.replace(b"ada", b"%d" % n) + b"a" + END for n in range(3)]
        assert [learner.learn(line, 0) for line in lines] == [None] * 3
        assert learner.learn(b"".join(lines), len(lines[0])) is not None

    def test_only_the_body_of_the_message_is_replaced(self) -> None:
        assert learnt(BEFORE + b'"body":"a","x":{"body":"a"}}}\n') is None
        assert learnt(BEFORE + b'"body":"b","x":{"body":"b"},"body":"a"}}\n') is not None
        assert learnt(BEFORE + b'"body":"a","body":"' + b"a" + END) is not None

    def test_long_texts_are_not_learnt(self) -> None:
        assert learnt(START + b"a" + b'","x":"' + b"y" * MAX_TEXT + END) is None

    def test_bodies_that_are_too_long_are_not_learnt(self) -> None:
        assert learnt(START + b"x" * 11 + END) is None

    def test_escaped_bodies_are_not_learnt(self) -> None:
        assert learnt(START + b"\\u0061\\" + END) is None

    def test_lines_with_a_password_are_not_learnt(self) -> None:
        assert learnt(b'{"password":"sesame",' + START[1:] + b"a" + END) is None

    def test_other_lines(self) -> None:
        for line in (
            wire.get("ada"),
            wire.open_("body"),
            b"\n",
            b"x\n",
            base64.b64encode(START) + b"\n",
        ):
            assert learnt(line) is None
        assert PublishLearner().learn(START, 0) is None


def _lines(data: bytes) -> list[bytes]:
    """Split at line feeds only."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]
