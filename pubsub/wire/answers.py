"""Answers in the order of their requests, though some of them have to wait for the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class _Answer:
    """What is sent, once it is known."""

    __slots__ = ("data", "known")

    def __init__(self, data: bytes, known: bool) -> None:
        self.data = data
        self.known = known


class Answers:
    """The answers of one connection from the first that has to wait on.

    ``send`` takes what may leave; ``done`` is called when nothing waits any more.
    """

    def __init__(self, send: Callable[[bytes], None], done: Callable[[], None]) -> None:
        self._send = send
        self._done = done
        self._answers: deque[_Answer] = deque()

    def add(self, data: bytes) -> None:
        """An answer that is known, and waits for those before it."""
        self._answers.append(_Answer(data, True))

    def promise(self) -> Callable[[bytes], None]:
        """An answer that is not known yet; call what is returned with it."""
        answer = _Answer(b"", False)
        self._answers.append(answer)

        def keep(data: bytes) -> None:
            answer.data, answer.known = data, True
            self._flush()

        return keep

    def _flush(self) -> None:
        answers = self._answers
        ready = []
        while answers and answers[0].known:
            ready.append(answers.popleft().data)
        if ready:
            self._send(b"".join(ready))
        if not answers:
            self._done()
