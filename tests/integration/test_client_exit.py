"""Programs that end without closing a client of the library, with a real broker."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pubsub.client import Message, blocking
from pubsub.client.loop_thread import loop_thread
from tests.integration.broker import HOST, TIMEOUT, Broker, environment, run_python
from tests.waiting import until

# Of 1,000 bytes: more than are in flight at once.
_LATER = 6000
_BLOCKING = """
from pubsub.client.blocking import connect

client = connect(URL)
client.publish("cafe/7", b"first", confirm=True)
print("connected"), input()
for _ in range(6):
    client.publish_many("cafe/7", [bytes(1000)] * 1000)
print("queued")
"""
_COROUTINE = """
    client = connect(URL)
    await client.publish("cafe/7", b"first", confirm=True)
    print("connected"), input()
    for _ in range(6):
        await client.publish_many("cafe/7", [bytes(1000)] * 1000)
    print("queued")
"""
_TWISTED = f"""
from pubsub.client.twisted import connect
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import react

async def main():
{_COROUTINE}

react(lambda reactor: ensureDeferred(main()))
"""
_ASYNCIO = f"""
import asyncio
from pubsub.client import connect

async def main():
{_COROUTINE}

asyncio.run(main())
"""
_ENDS = {
    "falls off its end": "",
    "sys.exit": "raise SystemExit(0)",
    "an exception": "raise ValueError('on purpose')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "while a thread closes the client": """
from threading import Thread
Thread(target=client.close, daemon=True).start()
while not client._client._closed:
    pass
""",
}


@contextmanager
def queued(broker: Broker, code: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` while the broker stands still, until it has queued its messages."""
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    program = subprocess.Popen(
        [sys.executable, "-c", f"URL = {url!r}\n{code}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "connected\n"
        broker.signal(signal.SIGSTOP)
        try:
            program.stdin.write("\n")
            program.stdin.flush()
            assert program.stdout.readline() == "queued\n"
            yield program
        finally:
            broker.signal(signal.SIGCONT)
    finally:
        program.kill()
        program.communicate()


def ends(program: subprocess.Popen[str]) -> str:
    """Wait for the end of the program, and return its errors."""
    assert program.stderr is not None
    errors = program.stderr.read()
    program.wait(TIMEOUT)
    return errors


def lost(errors: str) -> int:
    """Return the number of the messages that the notices report."""
    return sum(map(int, re.findall(r"(?:Uncertain|Refusal)\(count=(\d+)", errors)))


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_the_messages_of_a_blocking_client_are_sent(broker: Broker, end: str) -> None:
    assert_sent(broker, _BLOCKING + end)


def test_the_messages_of_a_client_on_twisted_are_sent(broker: Broker) -> None:
    assert_sent(broker, _TWISTED)


def assert_sent(broker: Broker, code: str) -> None:
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    with blocking.connect(url) as client, client.subscribe("cafe/7") as messages:
        with queued(broker, code) as program:
            broker.signal(signal.SIGCONT)
            errors = ends(program)
        found = [messages.next(TIMEOUT) for _ in range(1 + _LATER)]
        assert all(isinstance(one, Message) for one in found)
        assert "not confirmed" not in errors
        assert "Refusal" not in errors


@pytest.mark.parametrize("code", [_BLOCKING, _TWISTED])
def test_a_broker_that_does_not_confirm_delays_the_end_for_a_while_only(
    broker: Broker, code: str
) -> None:
    with queued(broker, code) as program:
        errors = ends(program)
    assert "messages not confirmed: no reply within 5 s" in errors
    assert lost(errors) == _LATER


def test_ctrl_c_ends_the_wait(broker: Broker) -> None:
    # The signal comes once the end has begun.
    code = """
import signal, threading

end = client._client._end

async def interrupt():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    await end()

client._thread.at_end = {interrupt}
"""
    with queued(broker, _BLOCKING + code) as program:
        errors = ends(program)
    assert lost(errors) == _LATER
    assert "Traceback" not in errors
    assert "not confirmed" not in errors


def test_a_client_on_asyncio_warns(broker: Broker) -> None:
    """Its loop has ended, so nothing can be sent any more."""
    with queued(broker, _ASYNCIO) as program:
        errors = ends(program)
    assert f"the client was not closed, so {_LATER} published messages may be lost" in errors


def test_a_client_that_was_closed_or_has_nothing_to_send_does_not_warn(broker: Broker) -> None:
    code = """
import asyncio, sys
from pubsub.client import connect

async def main():
    async with connect(sys.argv[1]) as client:
        await client.publish("cafe/7", b"closed")
    await connect(sys.argv[1]).publish("cafe/7", b"confirmed", confirm=True)

asyncio.run(main())
"""
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    assert run_python(f"import os; os.dup2(1, 2)\n{code}", url, env={}) == ""


_LATE = """
import sys
from pubsub.client import ClientClosed
from pubsub.client.blocking import connect


class Owner:
    def __init__(self):
        self.client = connect(sys.argv[1])
        self.client.publish("cafe/7", b"used", confirm=True)
        self.messages = self.client.subscribe("cafe/8")

    def __del__(self, closed=ClientClosed):
        self.messages.close()
        self.client.close()
        try:
            self.client.publish("cafe/7", b"late", confirm=True)
        except closed as error:
            print(error)


owner = Owner()
"""


def test_a_client_that_is_used_while_python_removes_its_modules(broker: Broker) -> None:
    """The thread of the clients does not run any more: nothing waits for it."""
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    assert run_python(_LATE, url, env={}) == "the program has ended\n"


_AT_EXIT = """
import atexit, sys
from pubsub.client.blocking import connect

client = connect(sys.argv[1])
atexit.register(lambda: client.publish("cafe/7", b"the end", confirm=True))
"""


def test_a_client_that_connects_when_the_program_ends(broker: Broker) -> None:
    """Python has ended the threads by then in which the name of a host is looked up."""
    url = f"cafe://localhost:{broker.port('cafe')}"
    with blocking.connect(url) as client, client.subscribe("cafe/7") as messages:
        assert run_python(f"import os; os.dup2(1, 2)\n{_AT_EXIT}", url, env={}) == ""
        found = messages.next(TIMEOUT)
        assert isinstance(found, Message)
        assert found.payload == b"the end"


def test_a_client_that_is_forgotten_is_closed(broker: Broker) -> None:
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    with blocking.connect(url) as other, other.subscribe("cafe/7") as messages:
        with pytest.warns(ResourceWarning, match="unclosed <Client of cafe://"):
            blocking.connect(url, client_id="ada").publish("cafe/7", b"queued")
        found = messages.next(TIMEOUT)
        assert isinstance(found, Message)
        assert found.payload == b"queued"
    thread = loop_thread()
    until(lambda: not thread.at_end, "the client is closed")


def test_a_subscription_keeps_its_client(broker: Broker) -> None:
    url = f"cafe://{HOST}:{broker.port('cafe')}"
    messages = blocking.connect(url).subscribe("cafe/7")
    with blocking.connect(url) as other:
        other.publish("cafe/7", b"kept", confirm=True)
    found = messages.next(TIMEOUT)
    assert isinstance(found, Message)
    assert found.payload == b"kept"
    with pytest.warns(ResourceWarning, match="unclosed <Client of cafe://"):
        del messages


def test_the_end_of_the_program_waits_for_a_client_that_was_forgotten(broker: Broker) -> None:
    assert_sent(broker, f"{_BLOCKING}\ndel client")
