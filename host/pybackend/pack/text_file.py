"""Files that a person has written."""

from __future__ import annotations

from pathlib import Path

from pybackend.pack.errors import SpecificationError

_MOST_BYTES = 16 * 1024 * 1024


def read_text(path: Path) -> str:
    """The whole file.

    Raises:
        SpecificationError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise SpecificationError(f"{path} is longer than {_MOST_BYTES >> 20} MB: it lists no packages")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise SpecificationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecificationError(f"{path} is not text in UTF-8") from None
