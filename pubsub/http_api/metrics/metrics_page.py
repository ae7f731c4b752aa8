"""/metrics: the figures of the broker for Prometheus."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from pubsub.build_info import build_kind, version
from pubsub.http_api.metrics.metric_family import Reading, read
from pubsub.http_api.requests.request_access import METRICS, request_access

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.reading.history_response import RunInThread
    from pubsub.http_api.requests.api_request import ApiRequest


class MetricsPage:
    """The endpoint /metrics. Its text is made in a thread, of figures of one moment."""

    def __init__(self, listener: Listener, run_in_thread: RunInThread) -> None:
        self._listener = listener
        self._run_in_thread = run_in_thread
        self._build = {
            "version": version(),
            "kernel": build_kind(),
            "python": platform.python_version(),
            "name": listener.statistics.name,
        }

    async def get(self, request: ApiRequest) -> None:
        """GET /metrics"""
        request_access(request, self._listener).require(METRICS)
        accept = ", ".join(request.requestHeaders.getRawHeaders("accept", []))
        reading = read(self._listener.statistics, self._build)
        body, kind = await self._run_in_thread(lambda: _render(reading, accept))
        request.answer(200, body, kind)


def _render(reading: Reading, accept: str) -> tuple[bytes, str]:
    from pubsub.http_api.metrics.metrics_exposition import render

    return render(reading, accept)
