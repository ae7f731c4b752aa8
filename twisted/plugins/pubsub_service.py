"""``twistd pubsub``: the broker."""

from twisted.application.service import ServiceMaker

pubsub = ServiceMaker("pubsub broker", "pubsub.server.tap", "A publish/subscribe broker.", "pubsub")
