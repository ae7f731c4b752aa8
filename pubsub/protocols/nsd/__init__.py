"""The protocol nsd, specified in ``seeds/nsd.md``."""
