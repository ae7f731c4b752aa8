"""Tests of the broker, one folder for each kind; helpers that several kinds use are here."""
