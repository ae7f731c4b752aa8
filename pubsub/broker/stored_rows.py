"""Rows of the store's metadata that are JSON objects."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Row = TypeVar("_Row", bound=DataclassInstance)


def read_row(kind: type[_Row], row: bytes) -> _Row:
    """Return the dataclass in ``row``. Members that only a later version knows are ignored."""
    found: dict[str, Any] = json.loads(row)
    return kind(**{field.name: found[field.name] for field in fields(kind) if field.name in found})
