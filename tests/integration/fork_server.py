"""A process that has imported the broker, and forks for each one that a test starts.

``python fork_server.py FILE TWISTD MODULE...`` imports the modules and reads requests from the
socket with that descriptor. A request is the directory and the arguments of ``twistd``, with three
descriptors: the output, the errors, and a socket that is told the process's number and, at its end,
its exit code.

The forks run ``twistd`` as its script does. This module imports nothing of the tests, so that a
broker has the modules of a broker. Nothing here may start a thread or install a reactor: a fork
would share the reactor's descriptors with this process.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import socket
import sys

_LARGEST = 1 << 18


def serve(requests: socket.socket) -> list[str]:
    """Fork for each request. Return in a fork, with its arguments; exit after the last request."""
    ends: dict[int, tuple[int, socket.socket]] = {}
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while True:
        for file, _ in waiting.poll():
            if file in ends:
                waiting.unregister(file)
                _report_end(file, *ends.pop(file))
                continue
            request, files, _, _ = socket.recv_fds(requests, _LARGEST, 3)
            if not request:
                sys.exit()
            output, errors = files[:2]
            news = socket.socket(fileno=files[2])
            pid = os.fork()
            if not pid:
                _close(requests, news, *(other for _, other in ends.values()))
                for end in ends:
                    os.close(end)
                return _become(output, errors, json.loads(request))
            os.close(output)
            os.close(errors)
            news.send(b"%d" % pid)
            end = os.pidfd_open(pid)
            ends[end] = pid, news
            waiting.register(end, select.POLLIN)


def _report_end(end: int, pid: int, news: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(end)
    with news:
        news.send(b"%d" % os.waitstatus_to_exitcode(status))


def _close(*sockets: socket.socket) -> None:
    for one in sockets:
        one.close()


def _become(output: int, errors: int, request: list[str]) -> list[str]:
    """Enter the directory of a request and write to its files; return the arguments."""
    for file, standard in ((output, 1), (errors, 2)):
        os.dup2(file, standard)
        os.close(file)
    directory, *arguments = request
    os.chdir(directory)
    return arguments


def main() -> None:
    """Serve in this process, and run ``twistd`` in its forks."""
    _, file, twistd, *modules = sys.argv
    sys.path[0] = os.path.dirname(twistd)
    for name in modules:
        importlib.import_module(name)
    from twisted.scripts.twistd import run

    assert "twisted.internet.reactor" not in sys.modules, "a module installs the reactor"
    sys.argv = serve(socket.socket(fileno=int(file)))
    run()


if __name__ == "__main__":
    main()
