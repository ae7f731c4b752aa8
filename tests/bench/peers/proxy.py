"""libzmq's proxy between an XSUB and an XPUB socket; prints their ports, and runs until killed."""

from __future__ import annotations

import resource

import zmq

# Of one process; libzmq takes a file more for each of its own sockets.
_CONNECTIONS = 100_000


def main() -> None:
    """Never returns."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = zmq.Context()
    # Each connection counts as one of the context's sockets; by default 1,023 may be open.
    context.set(zmq.MAX_SOCKETS, min(_CONNECTIONS, context.get(zmq.SOCKET_LIMIT)))
    publishers, subscribers = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    ports = []
    for sock in (subscribers, publishers):
        # Never drop: how much is under way is bounded by the generator.
        sock.set_hwm(0)
        ports.append(sock.bind_to_random_port("tcp://127.0.0.1"))
    print("subscribe at {}, publish at {}".format(*ports), flush=True)
    zmq.proxy(publishers, subscribers)


if __name__ == "__main__":
    main()
