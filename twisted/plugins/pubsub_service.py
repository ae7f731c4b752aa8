"""``twistd pubsub``: the broker."""

from twisted.application.service import ServiceMaker

pubsub = ServiceMaker("pubsub broker", "pubsub_broker", "A publish/subscribe broker.", "pubsub")
