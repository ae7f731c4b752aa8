"""TLS of a client. The broker's certificate is always verified, for the host of the URL."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pubsub.client.client_errors import InvalidUrl
from pubsub.errors import ConfigurationError
from pubsub.wire.client_tls_files import check_files, client_context


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """``ca`` is a file of certificates to trust in place of the system's.

    ``certificate`` and ``key`` are files in PEM with which the client proves its identity.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, *files: str | os.PathLike[str] | None) -> TlsOptions:
        """Return the options with these files, in this order."""
        return cls(*(None if one is None else os.fspath(one) for one in files))

    def check(self) -> None:
        """Raise InvalidUrl if a file cannot be read, or the files cannot be used together."""
        with _invalid():
            check_files("tls_", self.ca, self.certificate, self.key)

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies names and chains. Raises InvalidUrl."""
        with _invalid():
            return client_context("tls_", self.ca, self.certificate, self.key)


@contextmanager
def _invalid() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise InvalidUrl(str(error)) from None
