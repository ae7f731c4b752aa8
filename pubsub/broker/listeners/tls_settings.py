"""The settings of TLS, which every listener has; ``wire/server_tls.py`` reads the files."""

from __future__ import annotations

from pubsub.settings import FILE, TEXT, Kind, Setting, choice

NONE, OPTIONAL, REQUIRED = "none", "optional", "required"
TLS = "tls"
"""The key of the contents of the files, among a listener's settings; not a setting itself."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Suites of TLS 1.2 with forward secrecy and authenticated encryption; 1.3 has no others."""


def _version(value: object) -> str:
    # A number in the file is taken literally.
    text = str(value)
    if text not in ("1.2", "1.3"):
        raise ValueError(f"expected 1.2 or 1.3, not {value!r}")
    return text


TLS_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "tls-cert",
        FILE,
        "",
        "a file in PEM with the certificate, and those up to the authority; the "
        "listener then serves TLS",
    ),
    Setting("tls-key", FILE, "", "a file in PEM with the private key; default: tls-cert has it"),
    Setting(
        "tls-ca",
        FILE,
        "",
        "a file in PEM with the authorities of clients' certificates",
    ),
    Setting(
        "tls-client",
        choice(NONE, OPTIONAL, REQUIRED),
        NONE,
        "whether clients are asked for a certificate, and must have one",
    ),
    Setting(
        "tls-identity",
        choice("cn", "dns", "email", "uri"),
        "cn",
        "the name in a client's certificate for access rules: the common name, or the "
        "first alternative name of a kind",
    ),
    Setting("tls-min", Kind("1.2|1.3", _version), "1.2", "the oldest version of TLS"),
    Setting("tls-ciphers", TEXT, CIPHERS, "cipher suites of TLS 1.2, as a list for OpenSSL"),
)
