"""Lines of a server's log, taken apart."""

import json
import re
from typing import NamedTuple

from tests.support.server import ServerProcess

_LINE = re.compile(r'^([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} (\d+) (\S+:\d+)\] (".*")$', re.MULTILINE)


class LogLine(NamedTuple):
    """One line.

    Attributes:
        letter: its level.
        pid: the process that said it.
        place: file and line.
        text: what it says.
    """

    letter: str
    pid: int
    place: str
    text: str


def log_lines(output: str) -> list[LogLine]:
    return [LogLine(letter, int(pid), place, json.loads(text)) for letter, pid, place, text in _LINE.findall(output)]


def lines_with(server: ServerProcess, tag: str, last: str) -> list[LogLine]:
    """The lines whose text begins with a tag, once the one that ends in ``last`` has been written.

    Errors and warnings go to stderr, the rest to stdout; here both are one pipe, in the order in which they were said.
    """
    server.wait_for(f'"{re.escape(tag)}[^\n]*{re.escape(last)}"\n')
    return [line for line in log_lines(server.output) if line.text.startswith(tag)]


_OF_A_MODEL = re.compile(r"[IWE]\d{4} \S+ \d+ \S+/\S+:\d+\] ")


def server_tracebacks(output: str) -> list[str]:
    """The lines of a server's output with a traceback of its own; those of models' errors are theirs."""
    return [line for line in output.splitlines() if "Traceback" in line and not _OF_A_MODEL.match(line)]
