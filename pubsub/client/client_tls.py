"""TLS of a client. The broker's certificate is always verified, for the host of the URL."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from pubsub.client.client_errors import InvalidUrl


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
        """Raise InvalidUrl if the files cannot be used together."""
        if self.key is not None and self.certificate is None:
            raise InvalidUrl("tls_key needs tls_cert")
        for name, path in (("ca", self.ca), ("cert", self.certificate), ("key", self.key)):
            if path is not None and not Path(path).is_file():
                raise InvalidUrl(f"tls_{name}: {path} is not a file")

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies names and chains. Raises InvalidUrl."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise InvalidUrl(f"tls_ca: {self.ca}: {_reason(error)}") from None
        # As from Python 3.13 on: the certificate of a trusted authority need not be a root's.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password="")
            except (OSError, ValueError) as error:
                files = " and ".join(filter(None, (self.certificate, self.key)))
                raise InvalidUrl(f"tls_cert: {files}: {_reason(error)}") from None
        return context


def _reason(error: Exception) -> str:
    """Return OpenSSL's or the system's reason for a file that cannot be used."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
