"""``pubsub config``: the broker's configuration file."""

from __future__ import annotations

import click


@click.group("config", no_args_is_help=False)
def config() -> None:
    """Help with the broker's configuration file; see also "pubsub check-config"."""


@config.command("sample")
def sample() -> None:
    """Print a file with every setting, its meaning and its default.

    Everything in it is commented out, so that it has the effect of an empty file.
    """
    from pubsub.plugin import installed_protocols
    from pubsub.server.sample_configuration import sample as make_sample

    click.echo(make_sample(installed_protocols()), nl=False)


COMMAND = config
