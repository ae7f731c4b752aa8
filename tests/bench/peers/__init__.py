"""Our broker beside the ones that people would pick instead: ``python -m tests.bench.peers``.

mosquitto, redis-server and nats-server come from Debian (``make bench-peers`` installs them); a
process with libzmq's XPUB/XSUB proxy stands for ZeroMQ. All get the same load from the same
generator, by turns, each in a process of its own on the same core:

- ``contenders``: how each is started, and the wire it is spoken to with;
- ``proxy``: the process with libzmq's proxy;
- ``rounds``: who is measured when, and what came out;
- ``sections``: what is measured, and the tables it makes;
- ``scaling``: how our costs grow with subscribers, topics and sizes;
- ``logs``, ``durable``: what is on disk: against Redis' append-only file and JetStream;
- ``docs``: puts the tables where ``docs/performance.md`` has their marks.
"""
