"""Confines a process before it starts the Python of a model's environment.

An environment's interpreter, and the code it runs before any program (``.pth`` files, ``sitecustomize``), have the same
origin as the model. So the host's own Python confines the process, reports the result to the host on a pipe that no
later program has, and then becomes the environment's Python. Only hiding its memory is left for that one, because the
kernel makes every new program's memory visible. A zygote keeps the right to fork, and its forks confine themselves
further.

Started as ``<host's python> -I -S -B <this file> <bundle> <host pid> <mark> <confinement> <pipe> <kept>,...
<command>...``. Every name in the command's environment has an underscore in front here, so that none of it affects this
program.
"""

import json
import os
import sys
from typing import Dict, List


def main(arguments: "List[str]") -> None:
    """Become the command, confined."""
    bundle, host_pid, mark, written, pipe, kept = arguments[:6]
    command = arguments[6:]
    sys.path.insert(0, bundle)
    # Everything needed later is imported now: the files of this Python will soon be out of reach.
    from pybackend_stub.process import bear_mark, die_with_host
    from pybackend_stub.sandbox.confine import ConfinementError, confine
    from pybackend_stub.sandbox.one_program import become
    from pybackend_stub.sandbox.seccomp import install
    from pybackend_wire.confinement import CONFINED, CONFINED_AND_HIDES, Confinement, hides_memory

    die_with_host(int(host_pid))
    bear_mark(int(mark))
    variables = {name[1:]: value for name, value in os.environ.items() if name.startswith("_")}
    descriptors = [int(number) for number in kept.split(",") if number]
    confinement = Confinement.from_json(os.pread(int(written), 1 << 26, 0))
    listeners: List[int] = []

    def load_filter(confinement: Confinement, signals_are_scoped: bool) -> None:
        listeners.append(install(confinement, signals_are_scoped, for_one_program=True))

    try:
        report = confine(confinement, (*descriptors, int(pipe)), load_filter)
        _say(int(pipe), {"report": report})
        if hides_memory(confinement, report):
            command = [CONFINED_AND_HIDES if word == CONFINED else word for word in command]
        for number in descriptors:
            os.set_inheritable(number, True)
        os.set_inheritable(int(pipe), False)
        become(listeners[0] if listeners else 0, command, variables)
    except ConfinementError as error:
        _say(int(pipe), {"failure": str(error)})
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
        _say(int(pipe), {"failure": f"{command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"})
    os._exit(1)


def _say(pipe: int, said: "Dict[str, object]") -> None:
    os.write(pipe, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
