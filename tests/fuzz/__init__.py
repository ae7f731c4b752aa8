"""Fuzzing, by command."""
