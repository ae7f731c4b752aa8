"""The protocol cafe, specified in ``seeds/cafe.md``."""
