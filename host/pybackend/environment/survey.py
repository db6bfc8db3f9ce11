"""Checks an environment as far as that is possible without unpacking it."""

from __future__ import annotations

from pathlib import Path

from pybackend.author_files.reading import open_regular
from pybackend.environment.archive import ArchiveReader
from pybackend.environment.interpreter import check_usable, find_interpreter
from pybackend.environment.provider import cannot_read, canonical_path, check_activate, not_packed
from pybackend.environment.specification import is_specification
from pybackend.errors import ModelEnvironmentError


def survey(path: Path, *, packs_lists: bool) -> str:
    """Check that an environment exists, can be read and looks like one. Blocking.

    Args:
        path: from :func:`pybackend.environment.provider.environment_path`.
        packs_lists: lists of packages are packed when models are loaded.

    Returns:
        The version of its Python, such as ``3.12.1``; empty if only unpacking would tell.

    Raises:
        ModelEnvironmentError: it cannot be used.
    """
    canonical = canonical_path(path)
    try:
        if canonical.is_dir():
            source = f"the environment {path}"
            check_activate(canonical, path)
            interpreter = find_interpreter(canonical, source)
            check_usable(interpreter, source)
            return interpreter.version
        if not canonical.is_file():
            raise ModelEnvironmentError(f"the environment {path} is neither a directory nor an archive")
        if is_specification(canonical):
            if not packs_lists:
                raise not_packed(path)
            canonical.open("rb").close()
            return ""
        with open_regular(canonical) as file:
            next(ArchiveReader(file, str(path)).members(), None)
    except OSError as error:
        raise cannot_read(path, error) from error
    return ""
