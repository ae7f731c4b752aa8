"""The protocol fast, specified in ``seeds/fast.md``."""
