"""From a batch to the outboxes of its subscribers."""
