"""The names of files in the command line, which a shell completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

# Neither what exists nor who may read it is checked: the errors of the commands say more.
FILE_NAME = click.Path(readable=False)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def file_option(*names: str, help: str, required: bool = False) -> Callable[[_Command], _Command]:
    """Add an option for the name of a file."""
    return click.option(*names, type=FILE_NAME, metavar="FILE", help=help, required=required)
