"""The catalog that names an Iceberg table, and its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.tables.location import StorageError, StorageOptions


@dataclass(frozen=True, slots=True)
class IcebergName:
    """A table by its identifier in a catalog of pyiceberg's configuration.

    ``options`` are added to that configuration, and can be credentials.
    """

    identifier: str
    catalog: str
    options: StorageOptions = field(default=(), repr=False)

    def __post_init__(self) -> None:
        parts = self.identifier.split(".")
        if len(parts) < 2 or not all(parts):
            raise ConfigurationError(
                f"--to: an Iceberg table is named NAMESPACE.TABLE, not {self.identifier!r}"
            )

    def __str__(self) -> str:
        return f"{self.catalog}: {self.identifier}"

    @property
    def namespace(self) -> str:
        """The identifier without the name of the table."""
        return self.identifier.rpartition(".")[0]

    def open(self) -> Catalog:
        """Return the catalog. Raises StorageError."""
        with catalog_errors(self):
            return load_catalog(self.catalog, **dict(self.options))


@contextmanager
def catalog_errors(name: IcebergName) -> Iterator[None]:
    """Raise StorageError, in one line, for the errors of a catalog and of its files.

    pyiceberg passes on the errors of each kind of catalog, which have no class in common. Commits
    that lost against other writers are raised unchanged.
    """
    try:
        yield
    except (PubSubError, CommitFailedException, ValidationException):
        raise
    except Exception as error:
        text = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise StorageError(
            f"{name}: the catalog fails: {text}; check --catalog, --catalog-option and the "
            "configuration of pyiceberg"
        ) from None
