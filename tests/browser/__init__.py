"""Tests that open pages in a real browser."""
