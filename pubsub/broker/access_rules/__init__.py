"""Access rules: the actions that a client may take with a topic, and the reasons."""
