"""The domain: topics, routing, sessions, limits. Imports no transport and no protocol."""
