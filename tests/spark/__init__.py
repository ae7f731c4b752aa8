"""Tests with a Spark session and real brokers."""
