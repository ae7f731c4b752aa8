"""libzmq's proxy between an XSUB and an XPUB socket. Prints its ports and runs until killed."""

from __future__ import annotations

import resource

import zmq

# Connections of one process. libzmq needs an additional file for each of its sockets.
_CONNECTIONS = 100_000


def main() -> None:
    """Run forever."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    context = zmq.Context()
    # Each connection counts as a socket of the context, and the default limit is 1,023.
    context.set(zmq.MAX_SOCKETS, min(_CONNECTIONS, context.get(zmq.SOCKET_LIMIT)))
    publishers, subscribers = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
    ports = []
    for sock in (subscribers, publishers):
        # Never drop: the generator limits the messages in flight.
        sock.set_hwm(0)
        ports.append(sock.bind_to_random_port("tcp://127.0.0.1"))
    print("subscribe at {}, publish at {}".format(*ports), flush=True)
    zmq.proxy(publishers, subscribers)


if __name__ == "__main__":
    main()
