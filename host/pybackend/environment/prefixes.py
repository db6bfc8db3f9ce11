"""Rewrites the installation path inside the files of an unpacked environment.

conda writes an environment's directory into scripts, libraries and data. conda-pack lists these places in
``bin/conda-unpack``, a program in the archive that would rewrite them with the host's rights. This module only reads
its list.
"""

import ast
import glob
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybackend.errors import ModelEnvironmentError

_SCRIPT = "bin/conda-unpack"
_RECORDS = re.compile(r"^_prefix_records = (\[.*?^\])", re.MULTILINE | re.DOTALL)
_MOST_SCRIPT_BYTES = 32 * 1024 * 1024
_MOST_FILE_BYTES = 4 * 1024**3

_ENV_SHEBANG = re.compile(rb"#!\s*/usr/bin/env[ \t]+(?:-S[ \t]+)?(python[0-9.]*)((?:[ \t]+[^\r\n]*)?)\r?\n")
_LONGEST_SHEBANG_BYTES = 127
"""Older kernels truncate a longer first line."""

_FIRST_LINE_BYTES = 512


@dataclass(frozen=True)
class PrefixRecord:
    """A file that contains the environment's directory."""

    path: str
    placeholder: str
    binary: bool  # the file's length must not change


def rewrite_prefixes(prefix: Path, source: str) -> list[str]:
    """Write the directory of an unpacked environment to all places in conda-pack's list, and into its scripts.

    Args:
        prefix: the directory, freshly unpacked: no link in it leads outside.

    Returns:
        Paths of the modified files; compiled files of modified sources are removed.

    Raises:
        ModelEnvironmentError: the list cannot be read or names other files, or the directory's name is too long.
    """
    records = _read_records(prefix, source)
    changed = {record.path for record in records if _apply(record, prefix, source)}
    for path in [path for path in changed if path.endswith(".py")]:
        _forget_compiled(prefix / path)
    return sorted({*changed, *_mend_scripts(prefix)})


def _read_records(prefix: Path, source: str) -> list[PrefixRecord]:
    script = prefix / _SCRIPT
    if script.is_symlink() or not script.is_file():
        return []
    if script.stat().st_size > _MOST_SCRIPT_BYTES:
        raise ModelEnvironmentError(f"{source} is refused: its {_SCRIPT} is longer than any that conda-pack writes")
    found = _RECORDS.search(script.read_text("utf-8", "surrogateescape"))
    if found is None:
        return []
    try:
        return [_record(entry) for entry in ast.literal_eval(found[1])]
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ModelEnvironmentError(
            f"{source} is refused: the list in its {_SCRIPT} is not one that conda-pack writes ({error!r:.200})"
        ) from None


def _record(entry: Any) -> PrefixRecord:
    path, placeholder, mode = entry
    if not (isinstance(path, str) and isinstance(placeholder, str) and mode in {"text", "binary"}) or not placeholder:
        raise ValueError(entry)
    return PrefixRecord(path, placeholder, mode == "binary")


def _apply(record: PrefixRecord, prefix: Path, source: str) -> bool:
    """True if the file was modified. Missing files and links are left alone."""
    path = prefix / record.path
    parts = record.path.split("/")
    if record.path.startswith("/") or ".." in parts or "\0" in record.path or _has_link(prefix, parts[:-1]):
        raise ModelEnvironmentError(f"{source} is refused: its {_SCRIPT} names a file outside, '{record.path}'")
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_FILE_BYTES:
        return False
    old, new = os.fsencode(record.placeholder), os.fsencode(prefix)
    content = path.read_bytes()
    if old not in content:
        return False
    if record.binary:
        if len(new) > len(old):
            raise ModelEnvironmentError(
                f"{source} cannot be unpacked in {prefix}: '{record.path}' has room for a directory of {len(old)} bytes, "
                f"this one has {len(new)}; name a shorter one by --environment-cache-directory"
            )
        changed = _replaced_in_binary(content, old, new)
    else:
        changed = content.replace(old, new)
    _replace(prefix, path, changed)
    return True


def _forget_compiled(source: Path) -> None:
    """Remove the compiled file of a modified source: unpacked compiled files are not checked against their sources."""
    for compiled in (source.parent / "__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc"):
        compiled.unlink()


def _has_link(prefix: Path, parts: Iterable[str]) -> bool:
    path = prefix
    for part in parts:
        path /= part
        if path.is_symlink():
            return True
    return False


def _replaced_in_binary(content: bytes, old: bytes, new: bytes) -> bytes:
    """Replace strings that end in a zero byte without changing their length."""

    def shorter(match: re.Match[bytes]) -> bytes:
        text = match[0].replace(old, new)
        return text + b"\0" * (len(match[0]) - len(text))

    return re.sub(re.escape(old) + rb"[^\0]*\0", shorter, content)


def _mend_scripts(prefix: Path) -> list[str]:
    """Point scripts to the environment's interpreter: their packed shebang line has options that Linux refuses."""
    changed = []
    for name in sorted(os.listdir(prefix / "bin")) if (prefix / "bin").is_dir() else ():
        path = prefix / "bin" / name
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            found = _ENV_SHEBANG.match(file.read(_FIRST_LINE_BYTES))
        if found is None:
            continue
        line = _shebang(prefix, found[1], found[2].strip())
        content = path.read_bytes()
        if line != content[: found.end()]:
            _replace(prefix, path, line + content[found.end() :])
            changed.append(f"bin/{name}")
    return changed


def _shebang(prefix: Path, python: bytes, options: bytes) -> bytes:
    words = b" ".join(filter(None, (os.fsencode(prefix / "bin") + b"/" + python, options)))
    if len(words) + 3 <= _LONGEST_SHEBANG_BYTES and not re.search(rb"\s", os.fsencode(prefix)):
        return b"#!" + words + b"\n"
    by_path = b" ".join(filter(None, (b"-S" if options else b"", python, options)))
    return b"#!/usr/bin/env " + by_path + b"\n"


def _replace(prefix: Path, path: Path, content: bytes) -> None:
    """Replace a file, keeping its mode and time. A rewrite in place would also change hard links to it."""
    draft = prefix.with_name(prefix.name + ".draft")  # outside, where the archive cannot have put anything
    with draft.open("wb") as file:
        file.write(content)
    shutil.copystat(path, draft)
    draft.replace(path)
