"""Runs a program of the host in a sandbox: it is imported, then the process gives up its rights, and then the program begins.

So the program needs no file once it meets strangers. Started in the host's own Python as ``-m pybackend_stub.host_program
<name> <host pid> <mark> <confinement> <pipe> <kept>,... <module> <arguments>...``; the result of the confinement goes to the pipe.
"""

import importlib
import json
import os
import sys
from typing import Dict, List

from pybackend_stub.process import be_called, bear_mark, die_with_host
from pybackend_stub.sandbox.confine import ConfinementError, confine
from pybackend_wire.confinement import Confinement

_PREFIX = "pybackend "


def main(arguments: "List[str]") -> int:
    """Import a module, confine this process, and run the module's ``main`` with the other arguments."""
    name, host_pid, mark, written, pipe, kept, module = arguments[:7]
    die_with_host(int(host_pid))
    bear_mark(int(mark))
    be_called(name, name[len(_PREFIX) :] if name.startswith(_PREFIX) else name)
    program = importlib.import_module(module)
    confinement = Confinement.from_json(os.pread(int(written), 1 << 26, 0))
    try:
        report = confine(confinement, [int(pipe), *map(int, kept.split(","))])
    except ConfinementError as error:
        _say(int(pipe), {"failure": str(error)})
        return 1
    _say(int(pipe), {"report": report})
    os.close(int(pipe))
    return int(program.main(arguments[7:]))


def _say(pipe: int, said: "Dict[str, object]") -> None:
    os.write(pipe, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
