"""The command line of a benchmark: a flag for each setting, explained by the docstring."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def parse(doc: str | None, arguments: Sequence[str], **defaults: object) -> argparse.Namespace:
    """Read the flags; the type of a default is that of its values.

    None stands for a path, False for a switch, and a tuple for choices of which the first is the
    default.
    """
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    for name, default in defaults.items():
        flag = "--" + name.replace("_", "-")
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif default is None:
            parser.add_argument(flag, type=Path)
        elif isinstance(default, tuple):
            parser.add_argument(flag, choices=default, default=default[0])
        else:
            parser.add_argument(flag, type=type(default), default=default, help="%(default)s")
    return parser.parse_args(arguments)
