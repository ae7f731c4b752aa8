"""The HTTP API against its own description: requests that schemathesis makes of it."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.integration.broker import HOST, TIMEOUT, Start, listen

# An upgrade, and the end of the broker.
_LEFT_OUT = {"/v1/ws", "/v1/drain"}
_EXAMPLES = 12
# Some parameters exclude each other, and most names are those of nothing.
_EXCLUDED = [positive_data_acceptance]


def test_requests_of_every_endpoint(start: Start) -> None:
    broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}")
    url = f"http://{HOST}:{broker.port('http')}"
    schema: Any = schemathesis.openapi.from_url(f"{url}/v1/openapi.json", timeout=TIMEOUT)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 35
    for operation in operations:
        if operation.path not in _LEFT_OUT:
            _try(operation, url)


def _try(operation: Any, url: str) -> None:
    """Make the same requests each time; each response must be one that is described."""

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def request(case: Any) -> None:
        # Such a response has no end.
        (case.query or {}).pop("follow", None)
        case.call_and_validate(base_url=url, timeout=TIMEOUT, excluded_checks=_EXCLUDED)

    request()
