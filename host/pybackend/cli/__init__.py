"""The command line."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    from pybackend.cli.commands import run

    return run(sys.argv[1:] if arguments is None else list(arguments))


def tritonserver() -> int:
    """Run ``pybackend serve`` under the reference's name, for commands and manifests that were written for it."""
    return main(["serve", *sys.argv[1:]])
