"""Reads a tar stream in one pass: blocks in, entries with their final names and sizes out.

It knows the formats ustar, pax, GNU and the old one without a magic number. The standard library decodes single blocks;
what blocks mean together is decided here, once, so that no release of tarfile reads an archive in another way than it
was checked. Nothing is read into memory before its size is known to be small.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

Refusal = Callable[[str], Exception]

_BLOCK_BYTES = tarfile.BLOCKSIZE
_CHUNK_BYTES = 1024 * 1024

_MOST_HEADER_BYTES = 1024 * 1024
"""Size of one extended header, which is read into memory at once. Long paths are its largest legitimate content."""

_MOST_HEADERS = 64
"""Extended headers before one file. Programs write up to three."""

_LONG_NAME, _LONG_LINK = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
_EXTENDED = frozenset({tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, _LONG_NAME, _LONG_LINK})

_WITHOUT_CONTENT = frozenset(
    {tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE}
)
"""No content follows the headers of these, whatever size they state. Content of every other kind can be skipped."""

_KEYWORDS = frozenset({b"path", b"linkpath", b"size", b"mtime"})
"""Records of extended headers that are read. Owners, for example, are not: unpacked files belong to the server."""

_LONGEST_LENGTH = 20
"""Characters of a record's length, which is a decimal number."""


class EntryContent:
    """The content of one entry, to be read before the next entry is requested."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; empty at the end. Raises EOFError if the stream ends before the content."""
        chunk = self._stream.read(min(size, self._left))
        if not chunk and self._left:
            raise EOFError("it ends in the middle")
        self._left -= len(chunk)
        return chunk


@dataclass(frozen=True, slots=True)
class Entry:
    """One file, directory, link or device, after its extended headers."""

    name: str  # as written; a directory's without slashes at its end
    kind: bytes  # the type flag; tarfile.REGTYPE for every kind of regular file
    target: str
    mode: int
    modified_s: float
    size: int  # 0 if it has no content
    content: EntryContent


class TarReader:
    """The entries of one tar stream.

    Args:
        stream: returns fewer bytes than asked for only at its end.
        refusal: makes the error for what is no damage and yet not read.
    """

    def __init__(self, stream: IO[bytes], refusal: Refusal) -> None:
        self._stream = stream
        self._refusal = refusal
        self._for_all: dict[bytes, str] = {}
        self.position = 0
        """Bytes of the stream before the content of the current entry."""

    def entries(self) -> Iterator[Entry]:
        """All entries, up to the mark that ends an archive; what follows it stays in the stream.

        Raises tarfile.TarError or EOFError for a stream that is damaged or ends without the mark.
        """
        while (entry := self._next()) is not None:
            yield entry
            self._skip(entry.content)
            self.position += entry.size
            self._skip_padding(entry.size)

    def _next(self) -> Entry | None:
        stated: dict[bytes, str] = {}
        for _ in range(_MOST_HEADERS + 1):
            block = self._read(_BLOCK_BYTES)
            if not any(block):
                if stated:
                    raise tarfile.ReadError("no file follows an extended header")
                return None
            header = _decoded(block)
            if header.type not in _EXTENDED:
                return self._entry(header, block, self._for_all | stated)
            content = self._extended(header)
            if header.type in {_LONG_NAME, _LONG_LINK}:
                stated[b"path" if header.type == _LONG_NAME else b"linkpath"] = _text(content.partition(b"\0")[0])
            else:
                (self._for_all if header.type == tarfile.XGLTYPE else stated).update(self._records(content))
        raise self._refusal(f"more than {_MOST_HEADERS} extended headers precede one file")

    def _entry(self, header: tarfile.TarInfo, block: bytes, stated: dict[bytes, str]) -> Entry:
        name, kind = stated.get(b"path", header.name), header.type
        shown = repr(name[:100])
        if kind == tarfile.GNUTYPE_SPARSE:
            raise self._refusal(f"{shown} is a sparse file: pack it without --sparse")
        if block[156:157] == tarfile.AREGTYPE and b"path" in stated:
            # In the old format, a slash at the end makes a directory. It must be that of the whole name.
            kind = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
        try:
            size, modified_s = int(stated.get(b"size", header.size)), float(stated.get(b"mtime", header.mtime))
        except ValueError as error:
            raise tarfile.ReadError(f"the header of {shown} is damaged") from error
        if size < 0:
            raise tarfile.ReadError(f"{shown} has a negative size")
        size = 0 if kind in _WITHOUT_CONTENT else size
        return Entry(
            name.rstrip("/") if kind == tarfile.DIRTYPE else name,
            tarfile.REGTYPE if kind in tarfile.REGULAR_TYPES else kind,
            stated.get(b"linkpath", header.linkname),
            header.mode,
            modified_s,
            size,
            EntryContent(self._stream, size),
        )

    def _extended(self, header: tarfile.TarInfo) -> bytes:
        if header.size < 0:
            raise tarfile.ReadError("an extended header has a negative size")
        if header.size > _MOST_HEADER_BYTES:
            raise self._refusal("an extended header is too large")
        content = self._read(header.size)
        self._skip_padding(header.size)
        return content

    def _records(self, content: bytes) -> dict[bytes, str]:
        """The records of a pax header that count: lines such as ``18 path=lib/file``, with the line's own length."""
        found = {}
        start = 0
        while start < len(content) and content[start]:
            digits = content[start : start + _LONGEST_LENGTH].partition(b" ")[0]
            end = start + int(digits) if digits.isdigit() else 0
            keyword, equals, value = content[start + len(digits) + 1 : end - 1].partition(b"=")
            if not start < end <= len(content) or not keyword or not equals or content[end - 1 : end] != b"\n":
                raise tarfile.ReadError("an extended header is damaged")
            if keyword.startswith(b"GNU.sparse."):
                raise self._refusal("it has sparse files: pack it without --sparse")
            if keyword in _KEYWORDS:
                found[keyword] = _text(value)
            start = end
        return found

    def _read(self, size: int) -> bytes:
        """Exactly this many bytes."""
        found = self._stream.read(size)
        if len(found) < size:
            raise EOFError("it ends in the middle")
        self.position += size
        return found

    def _skip(self, content: EntryContent) -> None:
        while content.read(_CHUNK_BYTES):
            pass

    def _skip_padding(self, size: int) -> None:
        self._read(-size % _BLOCK_BYTES)


def _decoded(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise tarfile.ReadError("a header is damaged") from error


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")
