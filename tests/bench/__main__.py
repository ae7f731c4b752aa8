"""The command line: ``python -m tests.bench --help``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from types import FrameType
from typing import TypeVar

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker, twisted_version
from tests.bench.client_library import run_client
from tests.bench.idle import measure_idle, raise_file_limit
from tests.bench.options import BenchOptions, parse_options
from tests.bench.plan import Topology, make_plan
from tests.bench.report import Report, environment, size_label
from tests.bench.requests.catalogue import Catalogue
from tests.bench.requests.processes import measured_broker
from tests.bench.requests.site import Scale
from tests.bench.selftest import run_self_test
from tests.bench.slow import ROUNDS, measure_slow
from tests.bench.steady import measure_steady
from tests.bench.throughput import measure_throughput
from tests.bench.wires import WIRES

Result = TypeVar("Result")


class Session:
    """The runs of one call of the program and their report."""

    def __init__(self, options: BenchOptions) -> None:
        self.report = Report()
        self._options = options
        self._wire = WIRES[options.wire]

    def run(self) -> None:
        """Run all measurements. Raises BenchError if the broker does not start."""
        if "idle" in self._options.modes:
            raise_file_limit(self._options.connections)
        runs = {
            "throughput": self._throughput,
            "steady": self._steady,
            "idle": self._idle,
            "requests": self._requests,
            "slow": self._slow,
            "client": self._client,
        }
        for mode in dict.fromkeys(self._options.modes):
            runs[mode]()

    def _throughput(self) -> None:
        options = self._options
        for topology, size in product(options.scenarios, options.sizes):
            plan = make_plan(self._wire, topology, size, options.batch, options.window)
            measure = partial(
                measure_throughput, wire=self._wire, plan=plan, seconds=options.seconds
            )
            label = f"throughput {topology}, {size_label(plan.payload)}"
            self._attempt(label, self.report.throughput, measure)

    def _steady(self) -> None:
        options = self._options
        topology, size = options.steady_scenario, options.steady_size
        measure = partial(
            measure_steady,
            wire=self._wire,
            topology=topology,
            payload=size,
            rate=options.rate,
            seconds=options.seconds,
        )
        label = f"steady {topology}, {size_label(size)}, {options.rate:,.0f} messages/s"
        self._attempt(label, self.report.steady, measure)

    def _idle(self) -> None:
        connections = self._options.connections
        measure = partial(measure_idle, wire=self._wire, connections=connections)
        self._attempt(f"idle, {connections:,} connections", self.report.idle, measure)

    def _requests(self) -> None:
        options, report = self._options, self.report
        scale = Scale.of(options.topics)
        print(f"requests, {scale.subscriptions:,} subscriptions", file=sys.stderr)
        with measured_broker(options.broker_options, options.broker_core) as (site, broker):
            self._describe(broker)
            try:
                Catalogue(site, scale, report.add_request).run()
            except BenchError as error:
                report.errors.append(f"requests: {error}")
                print(f"failed: {error}\n{broker.log_tail()}", file=sys.stderr)

    def _slow(self) -> None:
        options, report = self._options, self.report
        cores = (options.broker_core, options.generator_core)
        try:
            for one in measure_slow(options.twistd, options.broker_options, cores, options.seconds):
                report.slow.append(one)
                print(f"slow: round {len(report.slow)} of {ROUNDS}", file=sys.stderr)
        except BenchError as error:
            report.errors.append(f"slow: {error}")

    def _client(self) -> None:
        try:
            run_client(self._options)
        except BenchError as error:
            self.report.errors.append(f"client: {error}")

    def _attempt(
        self, label: str, results: list[Result], measure: Callable[[Broker], Result]
    ) -> None:
        """Measure with a new broker. A failure is reported and does not end the other runs."""
        options = self._options
        print(label, file=sys.stderr)
        with twistd_broker(
            options.twistd, self._wire, options.broker_options, options.broker_core
        ) as broker:
            self._describe(broker)
            try:
                results.append(measure(broker))
            except BenchError as error:
                self.report.errors.append(f"{label}: {error}")
                print(f"failed: {error}\nthe broker's output ends:", file=sys.stderr)
                print(broker.log_tail(), file=sys.stderr)

    def _describe(self, broker: Broker) -> None:
        if not self.report.environment:
            options = self._options
            self.report.environment = environment(
                broker.python_version(),
                twisted_version(options.twistd),
                (options.broker_core, options.generator_core),
            )


def self_test(options: BenchOptions) -> None:
    """Print the throughput of the generator without a broker."""
    wire = WIRES[options.wire]
    for size in options.sizes:
        plan = make_plan(wire, Topology(1, 1), size, options.batch, options.window)
        result = run_self_test(wire, plan, options.seconds, options.broker_core)
        print(
            f"{size_label(plan.payload)}: million messages/s: send {result.send / 1e6:.2f}, "
            f"receive and verify {result.receive / 1e6:.2f}, both {result.both / 1e6:.2f}"
        )


def main() -> int:
    """Return the exit code: 1 if a run failed or a message was lost, duplicated or reordered."""
    options = parse_options()
    # An exception, so that the broker is stopped when a signal ends this process.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminated)
    os.sched_setaffinity(0, {options.generator_core})
    session = Session(options)
    try:
        if options.self_test:
            self_test(options)
            return 0
        session.run()
    except BenchError as error:
        session.report.errors.append(str(error))
        print(*getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
    write_report(session.report, options)
    return 0 if session.report.clean else 1


def write_report(report: Report, options: BenchOptions) -> None:
    """Print the tables, and write the files that the options name."""
    text = report.markdown()
    print(text, end="")
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.json is not None:
        options.json.write_text(json.dumps(report.json(), indent=2) + "\n")


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
