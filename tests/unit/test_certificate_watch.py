"""The lines and figures about certificates that end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import trustme
from cryptography import x509
from OpenSSL import SSL
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.listener import Listener
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.server.certificates import CertificateWatch
from pubsub.wire.server_tls import CertificateEnd, ServerTls
from tests.unit.fakes import make_broker, make_listener, scratch
from tests.unit.streams import logged

AUTHORITY = trustme.CA()


class WatchTests(SynchronousTestCase):
    """Log lines about certificates"""

    def test_they_are_logged_at_the_start_and_daily_before_their_end(self) -> None:
        lines, clock = logged(self), Clock()
        end = datetime(2026, 7, 1, tzinfo=UTC)
        own = CertificateEnd("tls-cert", "a.example", end)
        tls = ServerTls(bytes(32), [own], SSL.Context(SSL.TLS_SERVER_METHOD))
        broker = make_broker()
        listener, plain = make_listener(broker), make_listener(broker)
        listener.settings = {**listener.settings, TLS: tls}
        assert listener.tls
        assert not plain.tls
        begin = end.timestamp() - 15.5 * 86_400
        watch = CertificateWatch([listener, plain], clock, lambda: begin + clock.seconds())
        watch.startService()
        assert lines == [
            "toy: TLS with the certificate of a.example until 2026-07-01 00:00 UTC, 00000000"
        ]
        clock.advance(86_400)
        assert lines[1:] == []
        clock.advance(86_400)
        assert lines[1:] == [
            "toy: the certificate of a.example ends on 2026-07-01; replace it and send SIGHUP"
        ]
        watch.stopService()
        assert not clock.getDelayedCalls()

    def test_an_expired_certificate_is_said_to_be(self) -> None:
        lines = logged(self)
        watch, _ = self.watch(self.tls("old", days=-1))
        watch.startService()
        self.addCleanup(watch.stopService)
        assert lines[1:] == [
            "toy: the certificate of old has expired on 2026-06-30; replace it and send SIGHUP"
        ]

    def test_one_that_a_reload_has_changed_is_looked_at(self) -> None:
        lines = logged(self)
        watch, listener = self.watch(self.tls("good", days=90))
        watch.look_again()
        assert lines == []
        watch.startService()
        self.addCleanup(watch.stopService)
        del lines[:]
        listener.settings = {**listener.settings, TLS: self.tls("next", days=3)}
        watch.look_again()
        watch.look_again()
        assert lines == [
            "toy: the certificate of next ends on 2026-07-04; replace it and send SIGHUP"
        ]

    def test_an_authority_that_ends(self) -> None:
        lines = logged(self)
        tls = self.tls("good", days=90)
        end = datetime(2026, 7, 4, tzinfo=UTC)
        tls.ends = [*tls.ends, CertificateEnd("tls-ca", "CN=ca", end)]
        watch, _ = self.watch(tls)
        watch.look()
        assert lines == [
            "toy: the certificate of CN=ca ends on 2026-07-04; replace it in tls-ca and send SIGHUP"
        ]

    def test_the_figures(self) -> None:
        """Of two listeners of a protocol with certificates of one name, the earlier end counts."""
        tls = self.tls("good", days=90)
        watch, listener = self.watch(tls)
        other = make_listener(make_broker())
        other.settings = {**other.settings, TLS: self.tls("good", days=80)}
        listeners = [listener, other]
        watch = CertificateWatch(listeners, Clock(), lambda: 0.0)
        expires = datetime(2026, 9, 19, tzinfo=UTC).timestamp()
        found = {"protocol": "toy", "setting": "tls-cert", "subject": "good", "expires": expires}
        assert watch.figures() == [found]
        other.settings = {**other.settings, TLS: self.tls("next", days=80)}
        assert [one["subject"] for one in watch.figures()] == ["good", "next"]
        listeners.clear()
        assert watch.figures() == []

    def test_the_certificate_for_the_backplane(self) -> None:
        path = scratch(self) / "a.pem"

        def issue(year: int, day: int) -> None:
            end = datetime(year, 7, day, tzinfo=UTC)
            issued = AUTHORITY.issue_cert("a.example", not_after=end)
            path.write_bytes(issued.cert_chain_pems[0].bytes())

        lines, clock = logged(self), Clock()
        begin = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
        watch = CertificateWatch([], clock, lambda: begin + clock.seconds(), str(path))
        issue(2026, 2)
        watch.startService()
        self.addCleanup(watch.stopService)
        watch.look_again()
        clock.advance(86_400)
        ends, expired = "ends on 2026-07-02", "has expired on 2026-07-02"
        line = "backplane: the certificate of a.example {}; replace it"
        assert lines == [line.format(ends), line.format(expired)]
        (figure,) = watch.figures()
        assert (figure["protocol"], figure["setting"]) == ("backplane", "backplane-cert")
        path.unlink()
        watch.look_again()
        issue(2027, 2)
        watch.look_again()
        assert len(lines) == 2
        issue(2026, 9)
        watch.look_again()
        assert lines[2] == line.format("ends on 2026-07-09")

    def test_a_certificate_for_peers(self) -> None:
        """It is read for each connection to one, as that for the backplane."""
        path = scratch(self) / "peer.pem"
        issued = AUTHORITY.issue_cert("a.example", not_after=datetime(2026, 7, 9, tzinfo=UTC))
        path.write_bytes(issued.cert_chain_pems[0].bytes())
        lines, listener = logged(self), make_listener(make_broker())
        listener.settings = {**listener.settings, "peer-cert": str(path)}
        now = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
        watch = CertificateWatch([listener], Clock(), lambda: now)
        watch.look()
        assert lines == ["toy: the certificate of a.example ends on 2026-07-09; replace it"]
        (figure,) = watch.figures()
        assert (figure["protocol"], figure["setting"]) == ("toy", "peer-cert")
        path.unlink()
        watch.look()
        assert watch.figures() == []

    def test_the_certificates_of_an_endpoint(self) -> None:
        """Twisted reads them when the listener is made; one up to the authority ends earlier."""
        begin = datetime(2026, 7, 1, tzinfo=UTC)
        ends = [begin + timedelta(days=days) for days in (8, 3, 5)]
        chain = [
            x509.load_pem_x509_certificate(
                AUTHORITY.issue_cert(f"{end:%d}.example", not_after=end).cert_chain_pems[0].bytes()
            )
            for end in ends
        ]
        lines, listener = logged(self), make_listener(make_broker())
        watch = CertificateWatch(
            [listener, make_listener(make_broker())], Clock(), begin.timestamp, "",
            lambda one: chain if one is listener else [],
        )  # fmt: skip
        watch.look()
        line = "toy: the certificate of {}.example ends on 2026-07-{}; replace it and restart the "
        assert lines == [line.format(day, day) + "broker" for day in ("09", "04")]
        assert [(one["setting"], one["subject"]) for one in watch.figures()] == [
            ("endpoint", "09.example"), ("endpoint", "04.example"),
        ]  # fmt: skip

    def tls(self, subject: str, days: int) -> ServerTls:
        """Return the TLS of a certificate that ends ``days`` after 2026-07-01."""
        end = datetime(2026, 7, 1, tzinfo=UTC) + timedelta(days=days)
        digest = subject.encode().ljust(32)
        own = CertificateEnd("tls-cert", subject, end)
        return ServerTls(digest, [own], SSL.Context(SSL.TLS_SERVER_METHOD))

    def watch(self, tls: ServerTls) -> tuple[CertificateWatch, Listener]:
        """Return the watch of a listener with ``tls``, on 2026-07-01."""
        listener = make_listener(make_broker())
        listener.settings = {**listener.settings, TLS: tls}
        now = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
        return CertificateWatch([listener], Clock(), lambda: now), listener
