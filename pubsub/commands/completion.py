"""``pubsub completion``: the completion of the command for a shell."""

from __future__ import annotations

import click

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion for SHELL.

    \b
    bash: eval "$(pubsub completion bash)" in ~/.bashrc
    zsh:  eval "$(pubsub completion zsh)" in ~/.zshrc, after compinit
    fish: pubsub completion fish > ~/.config/fish/completions/pubsub.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    root = context.find_root().command
    click.echo(made(root, {}, "pubsub", "_PUBSUB_COMPLETE").source())


COMMAND = completion
