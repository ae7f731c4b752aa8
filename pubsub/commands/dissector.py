"""``pubsub dissector``: writes the dissector for Wireshark to standard output."""

from __future__ import annotations

import click

from pubsub.plugin import installed_protocols


@click.command("dissector")
@click.option("--filters", is_flag=True, help="List the names of the display filters instead.")
def dissector(filters: bool) -> None:
    """Write a dissector of the installed protocols for Wireshark and tshark, in Lua.

    Save it in Wireshark's folder of personal plugins.
    """
    from pubsub.dissector.generator import display_filters, generate

    protocols = installed_protocols()
    if not filters:
        click.echo(generate(protocols), nl=False)
        return
    for name, protocol in protocols.items():
        for field in display_filters(protocol):
            click.echo(f"pubsub.{name}.{field.name} {field.type}")


COMMAND = dissector
