"""``pubsub bench``: measures the rate and the latency of a broker, over any protocols."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import click

from pubsub.commands.bench_run import LEAST_BYTES, BenchRun, Load, Results
from pubsub.commands.destination import Destination, destination, destination_options, split_users
from pubsub.commands.latency_histogram import draw, duration
from pubsub.commands.positive_number import PositiveNumber
from pubsub.commands.whole_number import WholeNumber
from pubsub.wire.url_list import split_urls

_BAR = 40
# A client or a message is made of each; more would end in a lack of memory or of open files.
_CLIENTS, _BATCH, _BYTES = 100_000, 1_000_000, 1024**3
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@click.command("bench")
@click.argument("topic", default="cafe/250")
@click.option(
    "--sub-url", metavar="URL", help="The broker for the subscribers (default: that of --url)."
)
@click.option("--pub", "publishers", type=WholeNumber(1, _CLIENTS), default=1, show_default=True,
              metavar="N", help="Number of publishers.")  # fmt: skip
@click.option("--sub", "subscribers", type=WholeNumber(0, _CLIENTS), default=1, show_default=True,
              metavar="N", help="Number of subscribers.")  # fmt: skip
@click.option("--count", "-n", type=WholeNumber(1), default=100_000, show_default=True,
              metavar="N", help="Messages of all publishers together.")  # fmt: skip
@click.option("--size", "-s", type=WholeNumber(LEAST_BYTES, _BYTES), default=64, show_default=True,
              metavar="BYTES", help="Size of a message.")  # fmt: skip
@click.option("--batch", "-b", type=WholeNumber(1, _BATCH), default=100, show_default=True,
              metavar="N", help="Messages that a publisher sends at once.")  # fmt: skip
@click.option("--rate", "-r", type=PositiveNumber(), metavar="N",
              help="Messages a second of all publishers (default: no limit).")  # fmt: skip
@click.option("--confirm", "-c", is_flag=True, help="Wait for the confirmation of each batch.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@destination_options
@click.pass_context
def bench(
    context: click.Context, /, topic: str, sub_url: str | None, publishers: int, subscribers: int,
    count: int, size: int, batch: int, rate: float | None, confirm: bool, as_json: bool,
) -> int:  # fmt: skip
    """Publish and subscribe on TOPIC (default: cafe/250), and print rates and latencies.

    The messages are stored like all others of the topic. The figures include this program, which
    uses one core. The exit code is 1 if messages were lost.

    \b
    pubsub bench --url cafe://127.0.0.1:7070 --rate 1000 --batch 1
    pubsub bench --url cafe://127.0.0.1:7070 --sub-url nsd://127.0.0.1:7071
    """
    where = destination(context)
    load = Load(topic, publishers, subscribers, count, size, batch, rate, confirm)
    from pubsub.commands.broker_client import run

    measured = BenchRun(load, where, _subscribers_at(where, sub_url))
    with _progress(measured):
        results = run(measured.run())
    if as_json:
        click.echo(json.dumps(as_object(load, results)))
    else:
        for line in report(load, results):
            click.echo(line)
    return 1 if results.lost else 0


def _subscribers_at(where: Destination, sub_url: str | None) -> Destination:
    if sub_url is None:
        return where
    # A wire without passwords would refuse the user of the other one.
    url, user = split_users(sub_url)
    known = {urlsplit(one).hostname for one in split_urls(where.url)}
    elsewhere = any(urlsplit(one).hostname not in known for one in split_urls(url))
    withheld = dict.fromkeys(where.of_context if elsewhere else ())
    return replace(where, url=url, user=user, **withheld)  # type: ignore[arg-type]


def report(load: Load, results: Results) -> Iterator[str]:
    """Yield the lines of the results."""
    rate = results.published / results.publishing
    yield f"published  {results.published:>12,}  {rate:>12,.0f} msg/s  {_megabytes(rate, load)}"
    if not load.subscribers:
        return
    rate = results.received / results.receiving
    yield f"received   {results.received:>12,}  {rate:>12,.0f} msg/s  {_megabytes(rate, load)}"
    if results.lost:
        yield f"lost       {results.lost:>12,}"
    shown = (f"p{p:g} {duration(results.latency.percentile(p))}" for p in _PERCENTILES)
    yield f"latency    {', '.join(shown)}, max {duration(results.latency.most or 0)}"
    yield from draw(results.latency, _BAR)


def _megabytes(rate: float, load: Load) -> str:
    return f"{rate * load.size / 1e6:>8,.1f} MB/s"


def as_object(load: Load, results: Results) -> dict[str, object]:
    """Return the results as a JSON object; latencies are in seconds."""
    latency = results.latency
    return {
        "topic": load.topic,
        "publishers": load.publishers,
        "subscribers": load.subscribers,
        "size": load.size,
        "batch": load.batch,
        "published": results.published,
        "published_per_second": round(results.published / results.publishing, 1),
        "received": results.received,
        "received_per_second": round(results.received / results.receiving, 1),
        "lost": results.lost,
        "latency": {
            **{f"p{p:g}": latency.percentile(p) / 1e9 for p in _PERCENTILES},
            "min": (latency.least or 0) / 1e9,
            "max": (latency.most or 0) / 1e9,
        },
        "histogram": [
            {"from": bar.low / 1e9, "to": bar.high / 1e9, "count": bar.count}
            for bar in latency.bars()
        ],
    }


@contextmanager
def _progress(measured: BenchRun) -> Iterator[None]:
    """Show the numbers of messages published and received, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        load = measured.load
        tasks = {"published": progress.add_task("published", total=load.count, rate="")}
        if load.subscribers:
            expected = load.count * load.subscribers
            tasks["received"] = progress.add_task("received", total=expected, rate="")

        def show(done: dict[str, int], seconds: float) -> None:
            for name, task in tasks.items():
                rate = f"{done[name] / seconds:,.0f} msg/s"
                progress.update(task, completed=done[name], rate=rate)

        measured.on_progress = show
        yield


COMMAND = bench
