"""A form (multipart/form-data) while it arrives, as browsers and ``curl -F`` send it.

The parts' bytes are kept as they are.
"""

import logging
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pybackend.errors import InferenceError, invalid
from pybackend.frontend.http.body import BoundedBody, RouteLimit
from pybackend.protocol.generate import MOST_MEMBERS, FormPart
from pybackend.protocol.steps import Steps

FORM = "multipart/form-data"

LARGEST_HEADER_BYTES, MOST_HEADERS = 4096, 8
"""Of each part: a name, the name of a file and a media type."""

SLICE_BYTES = 64 * 1024
"""Parsed at a time: a fraction of a millisecond, or a few of them if parts are short."""

_AS_IT_IS = {b"", b"7bit", b"8bit", b"binary"}

_silent = logging.getLogger(__name__)  # the parser would write a line about each mistake of a client
_silent.disabled = True


def is_form(content_type: str) -> bool:
    """Whether a body of this Content-Type is a form."""
    return content_type.partition(";")[0].strip().lower() == FORM


class FormBody(BoundedBody[list[FormPart]]):
    """A form, which becomes its parts, in their order."""

    def __init__(self, content_type: str, limit: RouteLimit) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise invalid(
                "the Content-Type of the form has no boundary: leave this header to the client, such as fetch or curl, "
                "which writes it with the form"
            )
        super().__init__(limit)
        self._parts = _Parts()
        self._delimiter = b"\r\n--" + boundary
        self._delimiter_count = 0
        self._waiting = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                self._parts.callbacks(),
                max_header_count=MOST_HEADERS,
                max_header_size=LARGEST_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _unreadable(str(error)) from None
        self._parser.logger = _silent

    def _take(self, data: bytes) -> None:
        self._waiting += data
        if self.work is None:
            self.work = self._parse_in_steps()

    def _parse_in_steps(self) -> Steps[None]:
        while self._waiting:
            piece = bytes(self._waiting[:SLICE_BYTES])
            del self._waiting[:SLICE_BYTES]
            # No content may have a delimiter. Those that are followed by other bytes would be no parts, and cost as
            # much.
            self._delimiter_count += piece.count(self._delimiter)
            if self._delimiter_count > MOST_MEMBERS + 1:
                raise _too_many()
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise _unreadable(str(error)) from None
            yield

    def finish(self) -> list[FormPart]:
        if not self._parts.has_ended:
            raise _unreadable("it ends before its last boundary")
        return self._parts.complete

    def release(self) -> None:
        super().release()
        self._waiting.clear()
        self._parts.complete.clear()


class _Parts:
    """Takes what the parser finds. The parser refers to it, and it does not refer to the parser."""

    def __init__(self) -> None:
        self.complete: list[FormPart] = []
        self.has_ended = False
        self._count = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_name = self._header_value = b""
        self._part_name = ""
        self._data = bytearray()
        self._has_no_file = False

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_begin": self._begin_header,
            "on_header_field": self._add_name,
            "on_header_value": self._add_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_head,
            "on_part_data": self._add_data,
            "on_part_end": self._end,
            "on_end": self._end_form,
        }

    def _begin(self) -> None:
        self._count += 1
        if self._count > MOST_MEMBERS:
            raise _too_many()
        self._headers = {}

    def _begin_header(self) -> None:
        self._header_name = self._header_value = b""

    def _add_name(self, data: bytes, begin: int, end: int) -> None:
        self._header_name += data[begin:end]

    def _add_value(self, data: bytes, begin: int, end: int) -> None:
        self._header_value += data[begin:end]

    def _end_header(self) -> None:
        name = self._header_name.lower()
        if name in self._headers:
            raise _unreadable(f"a part has several headers {name.decode()}")
        self._headers[name] = self._header_value

    def _end_head(self) -> None:
        kind, options = parse_options_header(self._headers.get(b"content-disposition"))
        if kind != b"form-data" or b"name" not in options:
            raise _unreadable('a part has no name: its first header is Content-Disposition: form-data; name="NAME"')
        try:
            name = options[b"name"].decode()
        except UnicodeDecodeError:
            raise _unreadable("the name of a part is not UTF-8") from None
        coding = self._headers.get(b"content-transfer-encoding", b"").strip().lower()
        if coding not in _AS_IT_IS:
            raise _unreadable(f"part '{name}' is encoded as {coding.decode('latin-1')}: send its bytes as they are")
        self._part_name, self._data, self._has_no_file = name, bytearray(), options.get(b"filename") == b""

    def _add_data(self, data: bytes, begin: int, end: int) -> None:
        self._data += data[begin:end]

    def _end(self) -> None:
        if self._data or not self._has_no_file:
            self.complete.append(FormPart(self._part_name, bytes(self._data)))

    def _end_form(self) -> None:
        self.has_ended = True


def _too_many() -> InferenceError:
    return invalid(f"the form has more than {MOST_MEMBERS} parts")


def _unreadable(reason: str) -> InferenceError:
    return invalid(f"the form cannot be read: {reason}. Let the client write it: curl -F, or fetch with FormData")
