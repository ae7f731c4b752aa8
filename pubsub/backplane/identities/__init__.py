"""Identities of nsd that go on at another broker, and their numbers of messages."""
