"""A publish/subscribe broker: five wire protocols, one topic space, a durable history."""
