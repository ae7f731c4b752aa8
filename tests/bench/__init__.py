"""Load generator and measuring script for a pub/sub broker: ``python -m tests.bench --help``.

The broker runs pinned to one core, the generator polls its sockets on another, and what is
compared is work done per CPU-second *of the broker*, so that the generator's own cost and the
scheduler stay out of the figures. What each module holds:

- ``wires/``: per protocol, the handshake and the bytes around a payload;
- ``plan``: topologies (1-100, 50-1, 10-pairs) and the sizes of batches and windows;
- ``batches``: ready-made publish batches whose payloads carry publisher and sequence number;
- ``verify``: finds lost, duplicated and reordered messages in what was delivered;
- ``generator``: non-blocking publishers and subscribers, polled in one loop;
- ``broker``: the measured process: start, CPU seconds, resident memory, stop;
- ``throughput``, ``steady``, ``idle``, ``selftest``: the four kinds of measurement;
- ``report``: environment, JSON and Markdown;
- ``compare``: what a message costs over one wire as a multiple of another, in turns;
- ``__main__``: the command line.
"""


class BenchError(Exception):
    """A measurement cannot go on; the text is shown to the user as one line."""
