"""The command ``pubsub``: its subcommands, which are imported when they are used, and its errors.

Exit codes: 0 done; 1 failed; 2 the command line is wrong; 124 the time of ``--timeout`` has passed;
130 interrupted with Ctrl-C. A reader of standard output that ends is not an error.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pubsub.commands.command_group import LazyGroup, Subcommand
from pubsub.commands.usage import print_version, usage_line
from pubsub.discarded_output import discard_output
from pubsub.errors import PubSubError

FAILED, USAGE, INTERRUPTED = 1, 2, 130
_COMPLETE = "_PUBSUB_COMPLETE"

_SUBCOMMANDS = {
    "pub": Subcommand("pubsub.commands.pub", "publish messages"),
    "sub": Subcommand("pubsub.commands.sub", "print the messages of topics as they come"),
    "tail": Subcommand("pubsub.commands.tail", "print the last messages of topics"),
    "topics": Subcommand("pubsub.commands.topics", "list, create and delete topics"),
    "status": Subcommand("pubsub.commands.status", "show the state of a broker"),
    "sessions": Subcommand("pubsub.commands.sessions", "list the connections of clients"),
    "disconnect": Subcommand("pubsub.commands.disconnect", "disconnect clients"),
    "replay": Subcommand(
        "pubsub.commands.replay", "publish messages of the history again, or write them to a file"
    ),
    "bench": Subcommand("pubsub.commands.bench", "measure the rate and the latency of a broker"),
    "context": Subcommand("pubsub.commands.context", "name brokers, and choose one"),
    "secret": Subcommand(
        "pubsub.commands.secret", "write a new master secret to a file for its owner only"
    ),
    "passwd": Subcommand("pubsub.commands.passwd", "set and delete passwords of users"),
    "access": Subcommand("pubsub.commands.access", "explain what access rules decide"),
    "curve-key": Subcommand("pubsub.commands.curve_key", "write a key pair for spot with CURVE"),
    "token": Subcommand("pubsub.commands.token", "make and inspect tokens"),
    "history": Subcommand(
        "pubsub.commands.history",
        "check, repair, back up, restore, dump or migrate the history of a broker",
    ),
    "check-config": Subcommand(
        "pubsub.commands.check_config", "check a configuration file, and what a reload would change"
    ),
    "config": Subcommand("pubsub.commands.config", "print a sample of the configuration file"),
    "drain": Subcommand(
        "pubsub.commands.drain", "stop a broker, or a listener, after delivering its messages"
    ),
    "pipeline": Subcommand(
        "pubsub.commands.pipeline", "run a job of the Spark pipeline, or make a report"
    ),
    "dissector": Subcommand(
        "pubsub.commands.dissector", "write the dissector for Wireshark and tshark"
    ),
    "completion": Subcommand(
        "pubsub.commands.completion", "print the completion for bash, zsh or fish"
    ),
}

# The parts of the list of commands; those that are in none of them are in the second.
_GROUPS = {
    "Messages": ("pub", "sub", "tail", "replay", "bench"),
    "Brokers": (),
    "Security": ("secret", "passwd", "token", "access", "curve-key"),
    "Tools": ("context", "pipeline", "dissector", "completion"),
}
# The line with \b keeps click from joining the lines.
_EXAMPLES = """\b
Examples:
  pubsub pub greetings hello
  pubsub sub greetings --from earliest --count 1
  pubsub pub --url cafe://127.0.0.1:7070 cafe/7 hello
  pubsub tail greetings
  pubsub COMMAND --help
"""


@click.group(
    cls=LazyGroup,
    subcommands=_SUBCOMMANDS,
    groups=_GROUPS,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXAMPLES,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version,
    help="Print the version.",
)  # fmt: skip
def pubsub() -> None:
    """Publish, subscribe, and look after a broker.

    A command connects to --url, else to PUBSUB_URL, else to the context that "pubsub context use"
    has chosen, else to the HTTP API at http://127.0.0.1:7080. The broker itself is started with
    "twistd pubsub".
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Errors are one line on standard error.
    """
    _open_standard_streams()
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError:
        # It was reported. Python would fail once more when the process ends, with another code.
        discard_output()
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = _invoke(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        return _report(usage_line(error), USAGE)
    except click.ClickException as error:
        return _report(error.format_message(), FAILED)
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except OSError as error:
        if error.errno == errno.EPIPE:
            discard_output()
            return 0
        return _report(_system_error(error), FAILED)
    except UnicodeEncodeError as error:
        # Arguments that are not UTF-8 have surrogates in the place of their bytes.
        return _report(
            f"{error.object!r} is not text in UTF-8; use a locale and a terminal with UTF-8", FAILED
        )
    except (PubSubError, ValueError) as error:
        return _report(str(error), FAILED)
    except MemoryError:
        return _report("the memory is not sufficient; ask for less at a time", FAILED)
    return code or 0


def _open_standard_streams() -> None:
    """Replace the streams that the shell has closed, and show every character on the others.

    Otherwise the next file or socket that is opened has the descriptor of the stream. Characters
    that the encoding of the terminal does not have are shown as escapes.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It stays open until the process ends.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _invoke(arguments: list[str]) -> int | None:
    # click.Group.main would also decide how errors are reported.
    if instruction := os.environ.get(_COMPLETE):
        from click.shell_completion import shell_complete

        return shell_complete(pubsub, {}, "pubsub", _COMPLETE, instruction)
    with pubsub.make_context("pubsub", arguments) as context:
        code: int | None = pubsub.invoke(context)
        return code


def _report(text: str, code: int) -> int:
    print(f"pubsub: {text}", file=sys.stderr)
    return code


def _system_error(error: OSError) -> str:
    text = error.strerror or str(error)
    return f"{error.filename}: {text}" if error.filename else text
