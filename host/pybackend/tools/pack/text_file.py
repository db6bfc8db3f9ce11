"""Text files written by users."""

from __future__ import annotations

import errno
from pathlib import Path

from pybackend.author_files.reading import read_regular
from pybackend.tools.pack.errors import SpecificationError

_MOST_BYTES = 16 * 1024 * 1024


def read_text(path: Path) -> str:
    """The whole file. Raises SpecificationError if it cannot be read, or is not text."""
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise SpecificationError(f"{path} is longer than {_MOST_BYTES >> 20} MB: it lists no packages") from None
        raise SpecificationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecificationError(f"{path} is not text in UTF-8") from None
