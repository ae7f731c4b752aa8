"""This broker beside other brokers: ``python -m tests.bench.peers``.

mosquitto, redis-server and nats-server come from Debian (``make peers`` installs them); a process
with libzmq's XPUB/XSUB proxy stands for ZeroMQ. All get the same load from the same generator, in
turns, each in a process of its own on the same core:

- ``contenders``: how each broker is started, and its wire protocol;
- ``proxy``: the process with libzmq's proxy;
- ``rounds``: the order of the measurements, and their results;
- ``sections``: the measurements, and the tables that they make;
- ``scaling``: how the costs of this broker grow with subscribers, topics and sizes;
- ``logs``, ``durable``: storage on disk, beside Redis' append-only file and JetStream;
- ``docs``: writes the tables into ``docs/performance.md``.
"""
