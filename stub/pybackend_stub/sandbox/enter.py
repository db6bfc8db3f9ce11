"""Confines a process before the Python of a model's environment is started in it.

An environment's interpreter, and what that runs before any program (``.pth`` files, ``sitecustomize``), come from where the model
comes from. So the host's own Python confines the process, and then becomes the other one. As a stub that confines itself once
more: there it goes without starting processes, which would have kept this one from becoming it. As a zygote it does not, what it
forks does.

Started as ``<host's python> -I -S -B <this file> <bundle> <host pid> <confinement> <kept>,... <command>...``. Of the environment
that the command is to have, each name has an underscore in front, so that none of it counts here.
"""

import os
import sys
from typing import List


def main(arguments: "List[str]") -> None:
    """Become the command, confined."""
    bundle, host_pid, written, kept = arguments[:4]
    command = arguments[4:]
    sys.path.insert(0, bundle)
    from pybackend_stub.process import die_with_host
    from pybackend_stub.sandbox.confine import ConfinementError, confine
    from pybackend_wire.confinement import Confinement

    die_with_host(int(host_pid))
    variables = {name[1:]: value for name, value in os.environ.items() if name.startswith("_")}
    descriptors = [int(number) for number in kept.split(",")]
    confinement = Confinement.from_json(os.pread(int(written), 1 << 26, 0))._replace(subprocesses=True)
    if not confinement.users:
        confinement = confinement._replace(required=())  # what it lacks is said, and judged, the second time
    try:
        confine(confinement, descriptors)
        for number in descriptors:
            os.set_inheritable(number, True)
        os.execve(command[0], command, variables)  # noqa: S606  that is what this file is for
    except (ConfinementError, OSError) as error:
        sys.stderr.write(f"{command[0]} cannot be started in a sandbox: {error}\n")
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
