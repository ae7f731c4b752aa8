"""The command line of ``twistd pubsub``, built from the declared settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from getopt import GetoptError
from importlib.metadata import version
from typing import Any

from twisted.python import usage

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.build_info import build_kind
from pubsub.discarded_output import discard_output
from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN, IWireProtocol, installed_protocols
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.configuration import CommandLine, Config, flag, merge
from pubsub.server.file_tables import read_file
from pubsub.server.log_setup import FailedStart
from pubsub.settings import BOOLEAN, Setting


class Options(usage.Options):
    """Parses the command line and the configuration file into ``config``.

    An error ends the process with exit code 1 and one line on standard error.
    """

    synopsis = "[options]"
    config: Config

    def __init__(self, protocols: Mapping[str, IWireProtocol]) -> None:
        self._protocols = protocols
        self._listen: list[tuple[str, str | None]] = []
        self._names: list[str] = []
        self._ports: list[str] = []
        self._file = ""
        super().__init__()  # type: ignore[no-untyped-call]

    def opt_proto(self, name: str) -> None:
        """A protocol to serve; may be repeated. Default: all installed protocols."""
        self._names.append(name)

    def opt_port(self, port: str) -> None:
        """A port number or a Twisted endpoint string; one for each --proto, in order."""
        self._ports.append(port)

    def opt_listen(self, listener: str) -> None:
        """A protocol with its port or endpoint, for example cafe=tcp:7070; may be repeated."""
        name, equals, where = listener.partition("=")
        if not equals or not where:
            raise usage.UsageError(f"--listen: expected PROTOCOL=ENDPOINT, not {listener!r}")
        self._listen.append((name, where))

    def opt_config(self, path: str) -> None:
        """A TOML file with any of these settings; the command line has precedence."""
        self._file = path

    def opt_secret(self, secret: str) -> None:
        """Not accepted, because other users could read it. See --secret-file."""
        raise usage.UsageError(
            "--secret: not accepted, because other users can read the command line; "
            "make a file with `pubsub secret FILE` and give it with --secret-file"
        )

    def opt_version(self) -> None:
        """Print the version and exit."""
        print(f"pubsub {version('pubsub-broker')}, {build_kind()} (Twisted {version('Twisted')})")
        raise SystemExit(0)

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse ``options``; exits with one line if they are invalid."""
        try:
            super().parseOptions(options)  # type: ignore[no-untyped-call]
        except (usage.UsageError, ConfigurationError) as error:
            # Those of getopt have no remedy.
            hint = _hint(str(error)) if isinstance(error.__context__, GetoptError) else ""
            raise FailedStart(f"pubsub: {error}{hint}") from None

    def parseArgs(self, *arguments: str) -> None:
        """Refuse positional arguments."""
        if arguments:
            raise usage.UsageError(f"unexpected argument {arguments[0]!r}")

    def postOptions(self) -> None:
        """Pair protocols with ports and merge everything into ``config``."""
        if self._ports and len(self._ports) != len(self._names):
            raise usage.UsageError(
                f"{len(self._names)} --proto but {len(self._ports)} --port: "
                "give one --port for each --proto, or none"
            )
        ports: Sequence[str | None] = self._ports or [None] * len(self._names)
        pairs = list(zip(self._names, ports, strict=True))
        given = {name: value for name, value in self.items() if value not in (None, 0, [])}
        self._line = CommandLine(given, pairs + self._listen)
        self.config = self.read()

    def read(self) -> Config:
        """Read the file again and return the configuration; raises ConfigurationError."""
        document = read_file(self._file) if self._file else {}
        try:
            return merge(self._protocols, self._line, document)
        except ConfigurationError as error:
            if not self._is_of_file(document, str(error)):
                raise
            raise ConfigurationError(f"{self._file}: {error}") from None

    def _is_of_file(self, document: Mapping[str, Any], problem: str) -> bool:
        """Return whether the file has this problem without the command line."""
        if not document:
            return False
        try:
            merge(self._protocols, CommandLine(), document)
        except ConfigurationError as error:
            return str(error) == problem
        return False

    def opt_help(self) -> None:
        """Print this help and exit."""
        try:
            print(self, flush=True)
        except BrokenPipeError:
            discard_output()
        raise SystemExit(0)

    def getUsage(self, width: int | None = None) -> str:
        """Return the options in groups, and examples."""
        from pubsub.server.help_text import help_text

        return help_text(self._protocols)


def _hint(problem: str) -> str:
    if "must not have an argument" in problem:
        return ": it stands for on; the file that --config names can have another value"
    return "; twistd pubsub --help lists the options"


def _help(setting: Setting) -> str:
    default = setting.default
    if default in ("", None):
        return f"{setting.help} [{setting.kind.syntax}]"
    if setting.kind is BOOLEAN:
        default = "on" if default else "off"
    return f"{setting.help} [{setting.kind.syntax}, default {default}]"


def _collect(name: str, setting: Setting) -> Callable[[Options, str], None]:
    """Return the method of an option that may be repeated."""

    def collect(self: Options, value: str) -> None:
        self.opts.setdefault(name, []).append(value)

    collect.__doc__ = _help(setting)
    return collect


def make_options(protocols: Mapping[str, IWireProtocol] | None = None) -> Options:
    """Return the options: one for every setting of the broker, its listeners and ``protocols``."""
    protocols = installed_protocols() if protocols is None else protocols
    flags: list[list[str | None]] = []
    parameters: list[list[str | None]] = []
    methods: dict[str, Callable[[Options, str], None]] = {}
    named = [(s.name, s) for s in (*BROKER_SETTINGS, *LISTENER_SETTINGS)]
    named += [
        (flag(protocol, s), s)
        for protocol in (*protocols.values(), ADMIN)
        for s in protocol.settings
    ]
    for name, setting in named:
        if setting.is_flag:
            flags.append([name, None, setting.help])
        elif setting.kind.repeated:
            methods[f"opt_{name.replace('-', '_')}"] = _collect(name, setting)
        else:
            parameters.append([name, None, None, _help(setting)])
    tables = {"optFlags": flags, "optParameters": parameters}
    made = type("Options", (Options,), {**tables, **methods})
    options: Options = made(protocols)
    return options
