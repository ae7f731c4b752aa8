"""A sample of the configuration file, made of the declared settings: every one with its default."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.plugin import ADMIN, IWireProtocol
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.reload_effects import BROKER, EFFECTS, LISTENER, Effect, effect_of
from pubsub.settings import Setting

_WIDTH = 92
_HEAD = """\
A configuration file of the broker, for `twistd pubsub --config FILE`.

Each line that begins with # and a name is a setting with its default: remove the # and change the
value. `pubsub check-config FILE` checks the file. SIGHUP makes a running broker read it again; the
remark after the meaning says from when on a changed value counts.
"""
_LISTENERS = """\
Each table [[listen]] is one listener. With none, every installed protocol listens on its default
port. A listener takes the settings of all listeners and of its protocol; port listens on the
address of the setting interface, endpoint is any Twisted endpoint string. The protocol "http" is
the HTTP API.

    [[listen]]
    protocol = "cafe"
    endpoint = "tcp:7070:interface=0.0.0.0"
    max-connections = 1000

    [[listen]]
    protocol = "http"
    port = 7080
"""
_SECRETS = """\
Each table [keys.ID] is a master secret of tokens; see docs/security.md.

    [keys.2026-11]
    secret-file = "/etc/pubsub/2026-11.key"
    ends = 2026-12-31T00:00:00Z
"""


def sample(protocols: Mapping[str, IWireProtocol]) -> str:
    """Return the file; unchanged, it has the effect of an empty file."""
    lines = list(_prose(_HEAD))
    lines += _section("The whole broker")
    lines += _settings(BROKER_SETTINGS, EFFECTS[BROKER])
    lines += _section("Every listener: defaults here, in the table of a protocol, or its own")
    lines += _settings(LISTENER_SETTINGS, EFFECTS[LISTENER])
    for protocol in (*protocols.values(), ADMIN):
        title = "the HTTP API" if protocol is ADMIN else protocol.name
        lines += _section(f"Listeners of {title}" if protocol is not ADMIN else "The HTTP API")
        lines += [f"#[{protocol.name}]"]
        effects = {one.name: effect_of(protocol.name, one.name) for one in protocol.settings}
        lines += _settings(protocol.settings, effects)
    lines += _section("Listeners")
    lines += _prose(_LISTENERS)
    lines += _section("Secrets")
    lines += _prose(_SECRETS)
    return "\n".join(lines).rstrip("\n") + "\n"


def _section(title: str) -> list[str]:
    return ["", f"# {'-' * (_WIDTH - 2)}", f"# {title}", ""]


def _prose(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield f"# {line}".rstrip()


def _settings(settings: Sequence[Setting], effects: Mapping[str, Effect]) -> Iterable[str]:
    for one in settings:
        text = f"{one.help} [{one.kind.syntax}; {effects[one.name]}]"
        yield from (f"# {line}" for line in wrap(text, _WIDTH - 2, break_on_hyphens=False))
        yield f"#{one.name} = {_toml(one.default)}"
        yield ""


def _toml(value: object) -> str:
    """Return a default, which is a number, a boolean or text, in TOML."""
    # JSON's literals of these are TOML's.
    return json.dumps(value)
