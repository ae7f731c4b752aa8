"""Options of the source and the sink: their values and their errors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.connector_options import (
    EVENTS_TOPIC,
    SourceOptions,
    parse_topics,
    sink_options,
    source_options,
)
from pubsub.pipeline.publishing import publisher_urls
from pubsub.pipeline.publishing.publisher_urls import (
    PublisherFactory,
    UrlColumns,
    client_options,
    find_destination,
)
from pubsub.pipeline.source import PubSubSource
from pubsub.plugin import installed_protocols
from tests.unit.fakes import Toy, scratch
from tests.unit.raising import raised

URL = "http://127.0.0.1:7080"
TOKEN = "eyJhbGciOi.very.secret"


def read(streaming: bool = False, **given: str) -> SourceOptions:
    """Parse options with keys in lower case, as Spark passes them."""
    lower = {key.lower(): value for key, value in given.items()}
    return source_options({"url": URL, **lower}, streaming)


class OptionsCase(SynchronousTestCase):
    def refused(self, words: str, streaming: bool = False, **given: str) -> str:
        """Return the error that these options raise."""
        error = raised(ConfigurationError, read, streaming, **given)
        assert words in str(error)
        return str(error)


class LoadTests(OptionsCase):
    """Spark asks for the schema in ``load``, before the kind of the query is known."""

    def schema(self, **given: str) -> str:
        return str(PubSubSource({"url": URL, **given}).schema())

    def test_options_of_both_kinds_are_permitted(self) -> None:
        assert "value" in self.schema(endingoffsets="latest", maxoffsetspertrigger="5")
        assert "headers" in self.schema(includeheaders="true")
        assert "frame" in self.schema(stream="events")

    def test_mistakes_are_errors(self) -> None:
        for given, words in (
            ({"maxoffsetspertrigger": "many"}, "maxOffsetsPerTrigger: expected a whole number"),
            ({"startingoffset": "latest"}, "did you mean startingOffsets?"),
            ({"subscribe": "a", "subscribepattern": "b"}, "cannot be combined"),
        ):
            assert words in str(raised(ConfigurationError, self.schema, **given))


class Where(OptionsCase):
    def test_brokers_are_partitions(self) -> None:
        options = read(url="http://a:1/, https://b")
        assert options.urls == ("http://a:1", "https://b")
        assert options.partitions == 2

    def test_a_file(self) -> None:
        options = source_options({"path": "/x/history.db"}, False)
        assert (options.path, options.urls, options.partitions) == ("/x/history.db", (), 1)

    def test_a_url_or_a_path_is_required(self) -> None:
        self.refused("either option url", path="/x")
        raised(ConfigurationError, source_options, {}, False)

    def test_invalid_urls(self) -> None:
        for url in ("nowhere", "http://", "http://a:port", "http://a:0", "a:7080"):
            self.refused("option url", url=url)
        self.refused("expected the HTTP API, http", url="cafe://a:7070")
        self.refused("named twice", url="http://a,http://a/")

    def test_a_secret_in_a_url_is_refused_and_not_shown(self) -> None:
        assert "hunter2" not in self.refused("option token", url="http://me:hunter2@a:1")

    def test_a_file_takes_no_token(self) -> None:
        error = raised(ConfigurationError, source_options, {"path": "/x", "token": TOKEN}, False)
        assert TOKEN not in str(error)


class Unknown(OptionsCase):
    def test_a_similar_option_is_suggested(self) -> None:
        self.refused("did you mean subscribePattern?", subscribepatern="a")
        self.refused("did you mean maxOffsetsPerTrigger?", True, maxoffsetpertrigger="1")
        self.refused("unknown option kafka.bootstrap", False, **{"kafka.bootstrap": "x"})

    def test_options_of_kafka(self) -> None:
        bootstrap = {"kafka.bootstrap.servers": "a:9092"}
        self.refused("kafka.bootstrap.servers; here it is url", False, **bootstrap)
        self.refused("groupidprefix; here it is readerName", True, groupIdPrefix="x")

    def test_a_value_is_not_shown(self) -> None:
        assert TOKEN not in self.refused("did you mean token?", tokn=TOKEN)

    def test_options_that_do_not_apply(self) -> None:
        self.refused("does not apply to a streaming query", True, endingoffsets="latest")
        for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "readerName"):
            self.refused("does not apply to a batch query", False, **{name: "5"})


class Topics(OptionsCase):
    def test_names(self) -> None:
        assert parse_topics(" orders , cafe/7") == frozenset({"orders", "cafe/7"})
        assert parse_topics(None) is None

    def test_any_name_as_json(self) -> None:
        names = ["a,b", 'q"uote', "sl/ash", "[x]", " space ", "\N{PARTY POPPER}", "back\\slash"]
        assert parse_topics(json.dumps(names)) == frozenset(names)
        assert parse_topics(json.dumps(names, ensure_ascii=False)) == frozenset(names)

    def test_invalid_topics(self) -> None:
        for value in ("", "a,,b", "[]", '["a", 1]', '["a"', '[""]', "x" * 256, '["\\ud800"]'):
            self.refused("option subscribe", subscribe=value)

    def test_a_pattern(self) -> None:
        assert read(subscribePattern="orders/.*").pattern == "orders/.*"
        self.refused("option subscribePattern", subscribepattern="(")
        self.refused("cannot be combined", subscribepattern="a", subscribe="a")

    def test_events(self) -> None:
        options = read(stream="Events")
        assert options.topics == frozenset({EVENTS_TOPIC})
        for name in ("subscribe", "subscribePattern"):
            self.refused("cannot be combined with", False, **{"stream": "events", name: "a"})
        self.refused("messages or events", stream="news")


class Places(OptionsCase):
    def test_words_and_partitions(self) -> None:
        assert read(startingOffsets="Earliest").starting == "earliest"
        options = read(startingOffsets='{"0": 12, "1": "latest"}', endingOffsets="latest")
        assert options.starting == {0: 12, 1: "latest"}
        assert options.ending == "latest"

    def test_invalid_offsets(self) -> None:
        for value in ("first", '{"0": -3}', '{"a": 1}', "[1]", "3", '{"0": true}', '{"0": 1.5}'):
            self.refused("option startingOffsets", startingoffsets=value)

    def test_a_time(self) -> None:
        assert read(startingTimestamp="1700000000123").starting_timestamp == 1700000000123000
        moment = "2023-11-14T23:13:20.000005+01:00"
        assert read(startingTimestamp=moment).starting_timestamp == 1700000000000005
        for value in ("yesterday", "2023-11-14T22:13:20", "-5"):
            self.refused("option startingTimestamp", startingtimestamp=value)
        for value in ("1700000000123000", "9" * 5000):
            self.refused("microseconds by 1000", startingtimestamp=value)
        assert read(startingTimestamp="253402300799999").starting_timestamp == 253402300799999000
        self.refused("cannot be combined", startingtimestamp="1", startingoffsets="latest")


class Amounts(OptionsCase):
    def test_limits(self) -> None:
        options = read(True, maxOffsetsPerTrigger="7", maxBytesPerTrigger="64m", rowsPerTask="9")
        assert (options.max_offsets, options.max_bytes) == (7, 64 * 1024**2)
        assert options.rows_per_task == 9
        assert read(True, maxBytesPerTrigger="10").max_bytes == 10

    def test_invalid_numbers(self) -> None:
        for value in ("0", "-1", "many", "", "1.5", "٣"):
            self.refused("option rowsPerTask", rowspertask=value)
            self.refused("option maxBytesPerTrigger", True, maxbytespertrigger=value)

    def test_flags(self) -> None:
        options = read(failOnDataLoss="FALSE", includeHeaders="true")
        assert (options.fail_on_data_loss, options.headers) == (False, True)
        assert read().fail_on_data_loss
        self.refused("true or false", failondataloss="no")

    def test_columns(self) -> None:
        assert read(columns="kafka").kafka
        assert not read(columns="pubsub").kafka
        assert not read().kafka
        self.refused("option columns: expected pubsub or kafka, not 'nats'", columns="nats")
        self.refused("cannot be combined with stream=events", stream="events", columns="kafka")

    def test_a_readers_name(self) -> None:
        assert read(True, readerName="nightly-1.a_b").reader_name == "nightly-1.a_b"
        for name in ("", "a b", "a/b", "x" * 201):
            self.refused("option readerName", True, readername=name)


class Tokens(OptionsCase):
    def test_they_are_never_shown(self) -> None:
        options = read(token=TOKEN)
        assert options.credentials.read() == TOKEN
        assert "secret" not in repr(options)

    def test_a_file_is_read_each_time(self) -> None:
        path = scratch(self) / "token"
        path.write_text("one\n")
        options = read(tokenFile=str(path))
        assert options.credentials.read() == "one"
        path.write_text("two")
        assert options.credentials.read() == "two"
        assert read().credentials.read() is None
        self.refused("cannot be combined", token=TOKEN, tokenfile="x")


def sink(given: Mapping[str, str]) -> UrlColumns:
    return find_destination(sink_options(given, client_options()))


def publisher(**given: str) -> PublisherFactory:
    """Return the factory of a task's publisher, from a copy of the driver's options."""
    publishers = pickle.loads(pickle.dumps(sink(given).publishers))
    assert isinstance(publishers, PublisherFactory)
    return publishers


class Sinks(SynchronousTestCase):
    def refused(self, words: str, given: Mapping[str, str]) -> None:
        assert words in str(raised(ConfigurationError, sink, given))

    def test_options_added_by_spark_are_ignored(self) -> None:
        added = {"checkpointlocation": "/x", "queryname": "q", "url": URL, "topic": "t"}
        assert sink_options(added, ()).topic == "t"

    def test_invalid_sinks(self) -> None:
        self.refused("option url is required", {})
        self.refused("different protocols or parameters", {"url": f"{URL},cafe://b:1"})
        self.refused("different protocols or parameters", {"url": "nsd://a,nsd+tls://b"})
        self.refused("different protocols or", {"url": "rheos://a,rheos://b?layout=original"})
        self.refused("named twice", {"url": f"{URL},{URL}/"})
        self.refused(
            "kafka is not installed; choose from http, https, cafe", {"url": "kafka://a:1"}
        )
        self.refused("option topic", {"url": URL, "topic": ""})
        self.refused("did you mean topic?", {"url": URL, "topics": "a"})
        self.refused("unknown option subscribe", {"url": URL, "subscribe": "a"})

    def test_tokens_by_protocol(self) -> None:
        self.refused("needs option token", {"url": "fast://a:1"})
        self.refused("cafe:// takes no option token", {"url": "cafe://a:1", "token": TOKEN})
        sink({"url": "fast+tls://a", "token": TOKEN})

    def test_channels(self) -> None:
        sink({"url": "cafe://a", "channels": "1:orders"})
        self.refused("for cafe", {"url": "spot://a", "channels": "1:orders"})
        self.refused("option channels", {"url": "cafe://a", "channels": "1-300"})

    def test_parameters(self) -> None:
        sink({"url": "rheos://a:1?layout=original&checksum=crc32"})
        self.refused("?layout: expected one of spec", {"url": "rheos://a:1?layout=new"})
        self.refused("?layout=spec: cafe:// has no such", {"url": "cafe://a:1?layout=spec"})

    def test_publishers_of_tasks(self) -> None:
        for protocol in ("cafe", "nsd", "rheos", "spot", "fast"):
            token = {"token": TOKEN} if protocol == "fast" else {}
            for url in (f"{protocol}://a", f"{protocol}+tls://a:5"):
                made = publisher(url=url, **token)
                assert (made.url, made.options) == (url, {})
                assert made.credentials.read() == token.get("token")
        assert sink({"url": URL}).publishers is None

    def test_publishers_of_several_brokers(self) -> None:
        assert publisher(url="nsd://a , nsd://b:5/").url == "nsd://a,nsd://b:5"

    def test_options_of_publishers(self) -> None:
        assert publisher(url="cafe://a", channels="1:orders").options == {"channels": "1:orders"}

    def test_a_protocol_without_a_client(self) -> None:
        protocols = {"toy": Toy("toy", 7099), "nsd": installed_protocols()["nsd"]}
        self.patch(publisher_urls, "installed_protocols", lambda: protocols)  # type: ignore[no-untyped-call]
        self.refused(
            "option url: the protocol toy has no client to publish with; "
            "choose from http, https, nsd",
            {"url": "toy://a"},
        )

    def test_columns(self) -> None:
        found = {
            scheme: sink({"url": f"{scheme}://a"}).optional_columns
            for scheme in ("https", "spot+tls", "nsd", "cafe")
        }
        assert found == {
            "https": ("key", "headers"),
            "spot+tls": ("key",),
            "nsd": ("key",),
            "cafe": (),
        }
