"""``EngineClient``: nats-py's client, with which TLS is demanded and not only used if offered."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client

from pubsub.backplane.engine.nats_work import Unusable

if not hasattr(Client, "_process_info"):
    # Nothing would call the method below, and credentials could be sent in clear.
    raise ImportError("this version of nats-py is not supported")


class EngineClient(Client):
    """A client for one connection.

    nats-py begins TLS if the first line of the server requires it. That line is not protected:
    somebody in between could remove the requirement, and get the credentials.
    """

    def __init__(self, demands_tls: bool) -> None:
        super().__init__()
        self._demands_tls = demands_tls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Called before anything is sent.
        if initial_connection and self._demands_tls:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise Unusable(
                    "it has no TLS; configure tls at the server, or remove backplane-ca and "
                    "backplane-cert and use nats://"
                )
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)
