"""Tests of the broker, one folder for each kind; what needs no other is in ``unit``."""
