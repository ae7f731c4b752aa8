"""The credentials of the broker for the engine, of a URL and of files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import trustme
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.engine_credentials import login
from pubsub.backplane.engine.engine_url import ENGINE, EngineOptions, engine_options
from pubsub.errors import ConfigurationError
from tests.unit.fakes import scratch
from tests.unit.nkey_seed import SEED
from tests.unit.raising import raised

JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJVIn0.c2lnbmF0dXJl_-"
CREDS = f"""-----BEGIN NATS USER JWT-----
{JWT}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.

-----BEGIN USER NKEY SEED-----
{SEED}
------END USER NKEY SEED------

*************************************************************
"""
HOST = "nats://HOST:4222"


class UrlTests(SynchronousTestCase):
    """Credentials in the URL"""

    def of(self, url: str) -> dict[str, Any]:
        """Return the options for a URL as the setting has it."""
        return login(ENGINE.parse(url).urls[0], "")

    def test_a_user_and_a_token(self) -> None:
        assert self.of("nats://HOST") == {}
        assert self.of("nats://me:sesame@HOST") == {"user": "me", "password": "sesame"}
        assert self.of("nats://me:@HOST") == {"user": "me", "password": ""}
        assert self.of("nats://sesame@HOST") == {"token": "sesame"}

    def test_escapes(self) -> None:
        expected = {"user": "m e", "password": "a,b@c/d%?#"}
        assert self.of("nats://m%20e:a%2Cb%40c%2Fd%25%3F%23@HOST") == expected
        assert self.of("nats://to%2Fken@HOST") == {"token": "to/ken"}

    def test_characters_that_need_an_escape(self) -> None:
        error = raised(ValueError, ENGINE.parse, "nats://me:sesame/1@HOST")
        assert "% escapes" in str(error)
        assert "sesame" not in str(error)


class FileTests(SynchronousTestCase):
    """Files of credentials"""

    def setUp(self) -> None:
        self.path = scratch(self) / "broker.creds"

    def of(self, text: str) -> dict[str, Any]:
        """Return the options for a file with ``text``."""
        self.path.write_bytes(text.encode())
        return login(HOST, str(self.path))

    def test_a_jwt_and_a_seed(self) -> None:
        for text in (CREDS, CREDS.replace("\n", "\r\n"), CREDS.rstrip("*\n")):
            (found,) = self.of(text).values()
            lines = str(found).splitlines()
            assert (lines[1], lines[5]) == (JWT, SEED)

    def test_a_seed_alone(self) -> None:
        for text in (SEED, f"{SEED}\r\n", CREDS[CREDS.index("-----BEGIN USER") :]):
            assert self.of(text) == {"nkeys_seed_str": SEED}

    def test_files_that_are_damaged_or_written_at_this_moment(self) -> None:
        for text, lacks in {
            "": "no JWT and no seed",
            "\n": "no JWT and no seed",
            CREDS[:60]: "no JWT and no seed",
            CREDS[: CREDS.index(SEED) + 20]: "no seed",
            CREDS.replace(SEED, SEED[:-1]): "no seed",
            CREDS.replace(SEED, "SA" + SEED[2:]): "no seed",
            SEED[:-1]: "no JWT and no seed",
            f"{SEED}\n{SEED}": "no JWT and no seed",
            "\xff\x00": "no JWT and no seed",
        }.items():
            error = raised(ConfigurationError, self.of, text)
            assert f"backplane-creds: {self.path} has {lacks} of a user" in str(error)
            assert SEED[:20] not in str(error)
            assert JWT[:20] not in str(error)

    def test_the_start_reads_the_file(self) -> None:
        self.path.write_text("junk")
        settings = {
            "backplane": ENGINE.parse(HOST), "backplane-creds": str(self.path),
            "backplane-ca": "", "backplane-cert": "", "backplane-key": "", "backplane-bytes": 1,
            "backplane-replicas": 1,
        }  # fmt: skip
        assert "has no JWT" in str(raised(ConfigurationError, engine_options, settings))
        settings["backplane-creds"] = ""
        settings["backplane-ca"] = str(Path(self.path.parent) / "missing")
        assert "backplane-ca: " in str(raised(ConfigurationError, engine_options, settings))

    def test_an_authority_need_not_be_a_root(self) -> None:
        ca = self.path.with_name("ca.pem")
        ca.write_bytes(trustme.CA().create_child_ca().cert_pem.bytes())
        options = EngineOptions(ENGINE.parse(HOST), "", str(ca), "", "", 1)
        context = options.of_nats(f"tls://{HOST}")["tls"]
        assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
