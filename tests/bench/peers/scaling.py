"""How what a message costs our broker grows with subscribers, topics and sizes."""

from __future__ import annotations


def section(contenders, options):
    return "", []
