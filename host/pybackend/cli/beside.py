"""``python -m pybackend.cli.beside SOCKET FLAGS``: a server beside the program that has started it, whose functions it serves.

``pybackend_bind`` starts it. SOCKET is a descriptor for :mod:`pybackend_wire.caller`, the flags are those of ``pybackend serve``.
"""

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pybackend.cli.command_line import parse_serve_flags
from pybackend.cli.command_parser import UsageError
from pybackend.cli.commands import serve
from pybackend.errors import PybackendError
from pybackend_wire.caller import FAILED, packet


def main(arguments: Sequence[str]) -> int:
    """Serve, and return the exit status. The program is told why if that fails."""
    descriptor = int(arguments[0])
    with socket.socket(fileno=os.dup(descriptor)) as caller:
        try:
            return serve(replace(parse_serve_flags(arguments[1:]), caller=descriptor))
        except (PybackendError, UsageError) as error:
            with suppress(OSError):  # the program is gone
                caller.send(packet(FAILED, error=str(error).removeprefix("Error: ")))
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
