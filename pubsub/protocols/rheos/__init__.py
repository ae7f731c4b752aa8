"""The protocol rheos, specified in ``seeds/rheos.md``."""
