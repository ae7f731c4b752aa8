"""libzmq's proxy between an XSUB and an XPUB socket; prints their ports, and runs until killed."""

from __future__ import annotations

import zmq


def main() -> None:
    """Never returns."""
    context = zmq.Context()
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
