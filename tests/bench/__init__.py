"""Load generator and benchmark of a publish/subscribe broker: ``python -m tests.bench --help``.

The broker runs on one core, and the generator polls its sockets on another. The result is the work
done per CPU second *of the broker*, so the cost of the generator and the scheduler does not affect
it. The modules:

- ``wires/``: the handshake of each protocol and the bytes around a payload;
- ``plan``: topologies (1-100, 50-1, 10-pairs) and the sizes of batches and windows;
- ``batches``: ready publish batches; each payload has its publisher and sequence number;
- ``verify``: finds lost, duplicated and reordered messages among those delivered;
- ``generator``: non-blocking publishers and subscribers, polled in one loop;
- ``broker``: the measured process: start, CPU seconds, resident memory, stop;
- ``throughput``, ``steady``, ``idle``, ``selftest``: four kinds of measurement;
- ``requests/``: how long each request of every protocol holds the reactor;
- ``report``: environment, JSON and Markdown;
- ``compare``: the cost of a message over one wire as a multiple of another, in turns;
- ``__main__``: the command line.
"""


class BenchError(Exception):
    """A measurement cannot continue; the text is a one-line message for the user."""
