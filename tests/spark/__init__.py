"""Tests that need a Spark session: one for the whole run, as it takes seconds to start."""
