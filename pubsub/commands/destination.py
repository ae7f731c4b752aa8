"""The broker that a command connects to: by options, environment, context, or default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import click

from pubsub.commands.contexts import Context, load
from pubsub.commands.credential_texts import read_password, read_token
from pubsub.commands.file_name import FILE_NAME
from pubsub.errors import ConfigurationError
from pubsub.wire.url_list import split_urls

DEFAULT_URL = "http://127.0.0.1:7080"
_CHANGED = (
    "api", "client_id", "token_file", "tls_ca", "tls_cert", "tls_key", "user", "password_file",
)  # fmt: skip
_SECRETS = ("token_file", "password_file")
# Protocols whose clients log in with passwords; the others have tokens, or neither.
_WITH_PASSWORDS = ("cafe", "nsd", "spot")
# Not those of other packages, which may have passwords.
_WITHOUT_PASSWORDS = ("http", "https", "fast", "rheos")
# Parts of the reasons for refusals, as the protocols have them.
_NO_RIGHT = (
    "not-authorized", "not authorized", "unauthorized", "permission denied", "missing_permission",
    "wrong_queue_key",
)  # fmt: skip
# cafe, nsd and spot have one answer for it and for a topic that a queue key closes.
_KEY_NEEDED = "if a queue key closes the topic, use fast or http and a token with the key"
_OWN_TOPIC = "'$SYS/"
ADVICE_OF_OWN_TOPICS = (
    "it is a topic of the broker itself: name it in the broker's setting grant, or in an access "
    "rule"
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Destination:
    """A broker, and the credentials of a client there.

    ``url`` may be several, with commas between them: of brokers that stand for one another.
    ``api`` is the URL of its HTTP API, None if it is not known; ``given`` is false if the command
    line and the environment named no broker. ``of_context`` has the names of the fields with
    secrets that a context gives: they are for the servers that it names.
    """

    url: str
    api: str | None
    client_id: str | None
    token_file: str | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    given: bool
    user: str | None = None
    password_file: str | None = None
    of_context: frozenset[str] = frozenset()

    def token(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Return the token of the file, else that of ``PUBSUB_TOKEN``.

        Raises ConfigurationError.
        """
        return read_token(self.token_file, environment)

    def login_url(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the URL with the user and the password, if there is a user.

        It is for the client library alone, which shows neither. The password is that of the file,
        else that of ``PUBSUB_PASSWORD``. Raises ConfigurationError.
        """
        if self.user is None:
            return self.url
        if self._protocol in _WITHOUT_PASSWORDS:
            raise ConfigurationError(
                f"a user is for cafe, nsd and spot, not for {self.url}; leave it out, and give a "
                "token with --token-file or PUBSUB_TOKEN if one is needed"
            )
        password = read_password(self.password_file, environment)
        if not password:
            raise ConfigurationError(
                f"the user {self.user!r} has no password here; write it to the first line of a "
                "file for --password-file, or set PUBSUB_PASSWORD"
            )
        login = f"{quote(self.user, safe='')}:{quote(password, safe='')}"
        return self.url.replace("://", f"://{login}@")

    def api_url(self) -> str:
        """Return the URL of the HTTP API. Raises ConfigurationError if it is not known."""
        if self.api is None and "token_file" in self.of_context:
            raise ConfigurationError(
                f"{self.url} has no history, and PUBSUB_API does not get the token of a context: "
                "name the broker's HTTP API with --api, or in the context"
            )
        if self.api is None:
            raise ConfigurationError(
                f"{self.url} has neither the history nor the state of the broker: name its HTTP "
                f"API with --api or PUBSUB_API, such as {DEFAULT_URL}"
            )
        return self.api

    @property
    def tls_files(self) -> tuple[str, str | None, str | None, str | None]:
        """The prefix of the options of TLS, and their files, as ``client_tls_files`` takes them."""
        return "--tls-", self.tls_ca, self.tls_cert, self.tls_key

    def hint(self) -> str:
        """Return the remedy if the broker cannot be reached."""
        if "+tls://" in self.url or self.url.startswith("https://"):
            return (
                "check the URL, that the broker runs, that --tls-ca names the authority of its "
                "certificate, and --tls-cert that of the client if the broker demands one"
            )
        if self.given:
            return "check the URL, as each protocol has a port of its own, and that the broker runs"
        return "start one with twistd -n pubsub, or name one with --url or pubsub context add"

    def hint_of_refusal(self, reason: str) -> str:
        """Return the remedy if the broker does not admit the client, for ``reason``."""
        if self.user is not None:
            # Of cafe: also for a user without the right to the first topic.
            if "UNAUTHORIZED" in reason:
                return (
                    "check the password, and that the user may use the topic; another is given "
                    "with --user and --password-file"
                )
            return "give a valid user and password with --user and --password-file"
        if self.token() is not None:
            return "give a valid token with --token-file or PUBSUB_TOKEN"
        if self._has_passwords:
            user = "it may need a user, with --user and --password-file or PUBSUB_PASSWORD"
            # Of cafe: also for a client without the right to the first topic.
            return f"{user}; {_KEY_NEEDED}" if "UNAUTHORIZED" in reason else user
        return "it may need a token, with --token-file or PUBSUB_TOKEN"

    def hint_of_right(self, reason: str) -> str:
        """Return ``; `` and the remedy if ``reason`` is that of a client without the right."""
        if not any(one in reason.lower() for one in _NO_RIGHT):
            return ""
        if _OWN_TOPIC in reason:
            return f"; {ADVICE_OF_OWN_TOPICS}"
        if self._has_passwords:
            user = "the broker's access rules decide: give a user that may, with --user"
            return f"; {user}; {_KEY_NEEDED}"
        return "; give a token that permits it with --token-file or PUBSUB_TOKEN"

    @property
    def _protocol(self) -> str:
        return urlsplit(self.url).scheme.partition("+")[0]

    @property
    def _has_passwords(self) -> bool:
        return self._protocol in _WITH_PASSWORDS


def destination_options(command: _Command) -> _Command:
    """Add the options that name a broker; the command gets a ``destination``."""

    def option(name: str, help: str, metavar: str) -> None:
        nonlocal command
        command = click.option(
            name, metavar=metavar, help=help, expose_value=False, callback=_remember,
            shell_complete=complete_context if name == "--context" else None,
            type=FILE_NAME if metavar == "FILE" else None,
        )(command)  # fmt: skip

    option("--tls-key", "The key of the client's certificate, in PEM.", "FILE")
    option("--tls-cert", "The client's certificate, in PEM.", "FILE")
    option("--tls-ca", "Certificates of the authorities to trust, in PEM.", "FILE")
    option("--client-id", "The name or id of this client on the wire.", "ID")
    option("--password-file", "File with the user's password (default: PUBSUB_PASSWORD).", "FILE")
    option("--user", "The user, where the wire has passwords.", "NAME")
    option("--token-file", "File with the token (default: PUBSUB_TOKEN).", "FILE")
    option("--api", "The broker's HTTP API, for its history (default: PUBSUB_API).", "URL")
    option("--context", "A context, as pubsub context list shows them.", "NAME")
    option(
        "--url", "The broker: cafe://HOST:PORT, http://HOST:PORT, ...; several with commas between "
        f"them (default: PUBSUB_URL, else the context in use, else {DEFAULT_URL}).", "URL",
    )  # fmt: skip
    return command


def complete_context(
    _context: click.Context, _option: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of contexts that begin with ``incomplete``."""
    return [name for name in load(os.environ).named if name.startswith(incomplete)]


def _remember(context: click.Context, option: click.Parameter, value: str | None) -> None:
    # A group and its commands share remembered values; the command's own option wins.
    given = context.meta.setdefault(__name__, {})
    given[option.name] = value if value is not None else given.get(option.name)


def destination(context: click.Context, environment: Mapping[str, str] = os.environ) -> Destination:
    """Return the destination that ``destination_options`` and the environment name.

    Raises ConfigurationError, OSError.
    """
    return resolve(context.meta[__name__], environment)


def resolve(options: Mapping[str, str | None], environment: Mapping[str, str]) -> Destination:
    """Return the destination of ``options``.

    A context's token goes to the servers that the context names, and to those of ``options``.
    """
    if options["url"] is not None and options["context"] is not None:
        raise click.UsageError("--url and --context exclude each other")
    base, given = _base(options, environment)
    secrets = [name for name in _SECRETS if getattr(base, name) and options[name] is None]
    changed = {name: options[name] for name in _CHANGED if options[name] is not None}
    base = replace(base, **changed)  # type: ignore[arg-type]
    url, user = split_users(base.url)
    base = replace(base, url=url, user=base.user if user is None else user)
    own = base.url if urlsplit(base.url).scheme.partition("+")[0] in ("http", "https") else None
    # A broker that the command line names is not replaced by one of the environment.
    named = options["url"] is not None or options["context"] is not None
    variable = None if "token_file" in secrets else environment.get("PUBSUB_API")
    api = base.api or (named and own) or variable or own
    return Destination(**{**asdict(base), "api": api}, given=given, of_context=frozenset(secrets))


def _base(
    options: Mapping[str, str | None], environment: Mapping[str, str]
) -> tuple[Context, bool]:
    """Return the broker that is named, and whether one is."""
    if options["url"] is not None:
        return Context(options["url"]), True
    if options["context"] is not None:
        return load(environment).find(options["context"]), True
    if environment.get("PUBSUB_URL"):
        return Context(environment["PUBSUB_URL"]), True
    contexts = load(environment)
    if contexts.current is not None:
        return contexts.find(contexts.current), True
    return Context(DEFAULT_URL), False


def split_users(text: str) -> tuple[str, str | None]:
    """Return the URLs of ``text`` without their user, and the user, as ``split_user`` does.

    Raises ConfigurationError, also if they have different users.
    """
    split = [split_user(url) for url in split_urls(text)]
    urls, users = [url for url, _ in split], {user for _, user in split}
    if len(users) > 1:
        raise ConfigurationError("the URLs have different users; give one with --user")
    return ",".join(urls), users.pop()


def split_user(url: str) -> tuple[str, str | None]:
    """Return ``url`` without its user, and the user, None without one.

    Raises ConfigurationError for a URL without a scheme or host, or with a password: it can be seen
    in lists of processes and in logs.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ConfigurationError(f"the URL cannot be used: {error}") from None
    if parts.password is not None or parts.username == "":
        raise ConfigurationError(
            "a URL has no password here; use --password-file or PUBSUB_PASSWORD, and for tokens "
            "--token-file or PUBSUB_TOKEN"
        )
    if parts.username is not None:
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if not parts.scheme or not host:
        raise ConfigurationError(
            f"{url}: expected a URL such as {DEFAULT_URL} or cafe://127.0.0.1:7070"
        )
    return url, None if parts.username is None else unquote(parts.username)
