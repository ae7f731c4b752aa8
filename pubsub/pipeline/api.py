"""The broker's HTTP API as the pipeline asks it: one connection, errors told apart, no reactor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import urllib3

from pubsub.pipeline.logs import Rejected, Unreachable, WrongLog
from pubsub.pipeline.options import Credentials

_CONNECT, _READ = 10.0, 120.0
_SHOWN = 300
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
# The broker may be stopping, starting, or out of room for the moment.
_PASSING = frozenset({502, 503, 504})
_BEYOND = 416
JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"


class Answer(Rejected):
    """An answer that says no, for whoever can make something of its status and its words."""

    def __init__(self, message: str, status: int, said: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class Api:
    """One broker. Tokens are sent, and shown nowhere."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self.url = url.rstrip("/")
        self._credentials = credentials
        # Trying again is for the callers, who know what would be done twice.
        self._pool = urllib3.PoolManager(
            retries=False, timeout=urllib3.Timeout(connect=_CONNECT, read=_READ)
        )

    def ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        kind: str = JSON,
    ) -> Any:
        """The JSON of the answer; None if it has none. As ``open`` else."""
        with self.open(method, path, query, body, kind) as response:
            try:
                data = response.read()
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self.broken(error) from None
            return json.loads(data) if data else None

    def open(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        kind: str = JSON,
    ) -> urllib3.BaseHTTPResponse:
        """An answer that is good, its body not read.

        Raises Unreachable, WrongLog or Answer.
        """
        target = f"{self.url}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        try:
            response = self._pool.request(
                method, target, body=body, headers=self._headers(kind), preload_content=False,
                redirect=False,
            )  # fmt: skip
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self.broken(error) from None
        if 200 <= response.status < 300:
            return response
        raise self._refusal(response)

    def _headers(self, kind: str) -> dict[str, str]:
        headers = {"Content-Type": kind}
        try:
            token = self._credentials.read()
        except OSError as error:
            raise Rejected(f"the token for {self.url} cannot be read: {error.strerror}") from None
        if token is not None:
            if not _TOKEN.fullmatch(token):
                # Else whoever sends it says so, and shows it.
                raise Rejected(f"the token for {self.url} is none: it has other characters")
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def broken(self, error: Exception | str) -> Unreachable:
        """The error for a connection that could not be made or has ended.

        Only the kind of an error is shown, as the words of some show requests.
        """
        what = error if isinstance(error, str) else type(error).__name__
        return Unreachable(f"the broker at {self.url}: {what}")

    def _refusal(self, response: urllib3.BaseHTTPResponse) -> Exception:
        with response:
            try:
                said = json.loads(response.read(65536))
                words = f"{said['error']}: {said.get('message', '')}"[:_SHOWN]
            except (ValueError, KeyError, TypeError, urllib3.exceptions.HTTPError):
                said, words = {}, "an answer that is not the broker's"
        text = f"the broker at {self.url} answers {response.status}, {words}"
        if response.status in _PASSING:
            return Unreachable(text)
        if response.status == _BEYOND or said.get("error") == "epoch":
            return WrongLog(f"{text}. The log is not the one that was read before")
        return Answer(text, response.status, said)
