"""The files in PEM with which a client connects over TLS; one wording for the library and commands.

A ``prefix`` is put before ``ca``, ``cert`` and ``key``, for errors: that of the options.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pubsub.errors import ConfigurationError


def check_files(prefix: str, ca: str | None, certificate: str | None, key: str | None) -> None:
    """Raise ConfigurationError unless the files that are given are there and can be read."""
    if key is not None and certificate is None:
        raise ConfigurationError(f"{prefix}key needs {prefix}cert")
    for name, path in (("ca", ca), ("cert", certificate), ("key", key)):
        if path is not None:
            with _naming({f"{prefix}{name}": path}):
                # To open a FIFO would wait for its writer.
                if not stat.S_ISREG(Path(path).stat().st_mode):
                    raise ValueError("not a regular file")
                Path(path).open("rb").close()


def client_context(
    prefix: str, ca: str | None, certificate: str | None, key: str | None
) -> ssl.SSLContext:
    """Return a context that verifies names and chains. Raises ConfigurationError.

    Without a file of authorities those of the system are trusted.
    """
    check_files(prefix, ca, certificate, key)
    with _naming({f"{prefix}ca": ca}):
        context = ssl.create_default_context(cafile=ca)
    # As from Python 3.13 on: the certificate of a trusted authority need not be a root's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None:
        # OpenSSL does not say which of them it cannot use.
        with _naming({f"{prefix}cert": certificate, f"{prefix}key": key}):
            context.load_cert_chain(certificate, key, password="")
    return context


@contextmanager
def _naming(files: Mapping[str, str | None]) -> Iterator[None]:
    """Name the ``files``, by option, in errors about their content. Raises ConfigurationError."""
    try:
        yield
    except (OSError, ValueError) as error:
        given = " and ".join(f"{option} {path}" for option, path in files.items() if path)
        raise ConfigurationError(f"{given}: {_reason(error)}; give a file in PEM") from None


def _reason(error: OSError | ValueError) -> str:
    """Return why a file of TLS cannot be used; OpenSSL does not say what it misses in a file."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or "what it should have is missing").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
