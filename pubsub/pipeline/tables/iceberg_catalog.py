"""The catalog that names an Iceberg table, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from pubsub.errors import ConfigurationError, PubSubError
from pubsub.pipeline.histories.history import Unreachable
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.tables.location import StorageError, StorageOptions

_Result = TypeVar("_Result")
_PATIENCE_SECONDS = 60.0


class CatalogFailure(StorageError, Unreachable):
    """A failure of a catalog or of its files; a retry can succeed."""

    reason = "storage"


@dataclass(frozen=True, slots=True)
class IcebergName:
    """A table by its identifier in a catalog of pyiceberg's configuration.

    ``options`` are added to that configuration, and can be credentials. A request that fails is
    tried again for ``patience`` seconds.
    """

    identifier: str
    catalog: str
    options: StorageOptions = field(default=(), repr=False)
    patience: float = 0.0

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
        return self.call(lambda: load_catalog(self.catalog, **dict(self.options)))

    def running(self) -> IcebergName:
        """Return the name for a job whose catalog has answered, and may be away for a while."""
        return replace(self, patience=_PATIENCE_SECONDS)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return the result of ``function``, which uses the catalog.

        Raises as ``catalog_errors``.
        """

        def attempt() -> _Result:
            with catalog_errors(self):
                return function()

        return Retry(self.patience).call(attempt)


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
        raise CatalogFailure(
            f"{name}: the catalog fails: {text}; check --catalog, --catalog-option and the "
            "configuration of pyiceberg"
        ) from None
