"""Batches that are staged in parts and committed once."""
