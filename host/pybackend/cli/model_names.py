"""The names of models that commands write."""

import re

from pybackend.cli.command_parser import CommandParser, UsageError
from pybackend.errors import InferenceError
from pybackend.repository.changes import check_name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LONGEST_NAME = 100
"""The names of further models and files are a little longer, and a file name has at most 255 bytes."""


def check_new_name(name: str, parser: CommandParser) -> None:
    """Check the name of a model that will be written.

    Raises UsageError if no model can have it, or it does not suit file names and URLs.
    """
    try:
        check_name(name)
    except InferenceError as error:
        raise UsageError(error.message, parser.format_usage()) from None
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        parser.refuse_with(
            f"invalid model name '{name}': write up to {_LONGEST_NAME} letters, digits, '_', '-' and '.', and begin "
            "with a letter or a digit"
        )


def name_from(text: str) -> str:
    """A valid name that resembles a text, ``""`` if the text has no letter or digit."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", text)
    return re.sub(r"^[^A-Za-z0-9]+", "", name)[:_LONGEST_NAME].rstrip("_.-")
