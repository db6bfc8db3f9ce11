"""Where a process listens.

To connect would not do: at another address, the same port may belong to any process of this machine.
"""

import os
import socket
import struct
from contextlib import suppress
from pathlib import Path

_LISTENS = "0A"


def addresses(pid: int, port: int) -> set[str]:
    """The addresses at which a process listens on a port of TCP."""
    held = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(link))
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for row in Path("/proc/net", name).read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = row.split()[:10]
            address, _, number = local.partition(":")
            if state == _LISTENS and int(number, 16) == port and f"socket:[{inode}]" in held:
                words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                found.add(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)))
    return found
