"""The options of the command lines that name tables, object stores and catalogs."""

from __future__ import annotations

import argparse

from pubsub.pipeline.command_line.argument_values import add_setting, parse_filled

DEFAULT_CATALOG = "default"


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add the option for the table that a job writes."""
    parser.add_argument(
        "--to",
        required=True,
        type=parse_filled,
        metavar="DIR",
        help="directory or URL of the Delta table",
    )
    add_storage(parser)


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add the options of object stores."""
    group = parser.add_argument_group("object store")
    add_setting(
        group,
        "--storage-option",
        "option of deltalake for a table at a URL, such as AWS_REGION=eu-west-1; may be repeated "
        "(default: the environment)",
    )
    group.add_argument(
        "--storage-options-file",
        type=parse_filled,
        metavar="FILE",
        help="file with such options, one in a line; for credentials",
    )


def add_catalog(parser: argparse.ArgumentParser) -> None:
    """Add the options of a catalog of Iceberg tables."""
    group = parser.add_argument_group("Iceberg")
    group.add_argument(
        "--catalog",
        default=DEFAULT_CATALOG,
        metavar="NAME",
        help=f"catalog in pyiceberg's configuration (default: {DEFAULT_CATALOG})",
    )
    add_setting(
        group,
        "--catalog-option",
        "property of the catalog, such as uri=sqlite:////srv/catalog.db; may be repeated",
    )
