"""Expiry, rewriting of segments, the check after a crash, and disk space."""
