"""Regular expressions of operators, for text of clients: RE2, in time that grows with the text alone, whatever the pattern."""

from collections.abc import Callable

import re2


def compile_pattern(pattern: str) -> Callable[[bytes], object]:
    """A search for a pattern in Latin-1 text, which ignores case unless the pattern says ``(?-i)``.

    None if it is not found.

    Raises ValueError, which says why, if it is no pattern of RE2.
    """
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        search: Callable[[bytes], object] = re2.compile(pattern.encode(), options).search
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        raise ValueError(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None
    return search
