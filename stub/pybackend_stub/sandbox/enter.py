"""Confines a process before it starts the Python of a model's environment.

An environment's interpreter, and the code it runs before any program (``.pth`` files, ``sitecustomize``), have the same
origin as the model. So the host's own Python confines the process, reports the result to the host on a pipe that no
later program has, and then becomes the environment's Python. Only hiding its memory is left for that one, because the
kernel makes every new program's memory visible. A zygote keeps the right to fork, and its forks confine themselves
further.

A process that may start no programs must still become that one. Its system call filter can neither look at paths nor
count. So the filter has the kernel ask a listener, a thread of the process itself, which says yes once. When the
process becomes the other program, the thread ends and its descriptor is closed; without a listener the kernel refuses
for ever. The filter also prevents the new program from listening.

Started as ``<host's python> -I -S -B <this file> <bundle> <host pid> <mark> <confinement> <pipe> <kept>,...
<command>...``. Every name in the command's environment has an underscore in front here, so that none of it affects this
program.
"""

import ctypes
import errno
import fcntl
import json
import os
import struct
import sys
import threading
from typing import Dict, List

_RECEIVE, _ANSWER = 0xC0502100, 0xC0182101
_QUESTION_BYTES = 80
_NUMBER = struct.Struct("=Q")
_CONTINUE = struct.Struct("=QqiI")
_GO_ON = 1


def main(arguments: "List[str]") -> None:
    """Become the command, confined."""
    bundle, host_pid, mark, written, pipe, kept = arguments[:6]
    command = arguments[6:]
    sys.path.insert(0, bundle)
    # Everything needed later is imported now: the files of this Python will soon be out of reach.
    from pybackend_stub.process import bear_mark, die_with_host
    from pybackend_stub.sandbox.confine import ConfinementError, confine
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
        _become(listeners[0] if listeners else 0, command, variables)
    except ConfinementError as error:
        _say(int(pipe), {"failure": str(error)})
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
        _say(int(pipe), {"failure": f"{command[0]} cannot be started: {getattr(error, 'strerror', None) or error}"})
    os._exit(1)


def _say(pipe: int, said: "Dict[str, object]") -> None:
    os.write(pipe, json.dumps(said).encode() + b"\n")


def _become(listener: int, command: "List[str]", variables: "Dict[str, str]") -> None:
    """Run a program in place of this one. Its system call filter has a listener, or 0 stands for none."""
    if listener:
        threading.Thread(target=_agree_once, args=(listener,), daemon=True).start()
    arguments = _array([os.fsencode(word) for word in command])
    environment = _array([os.fsencode(f"{name}={value}") for name, value in variables.items()])
    libc = ctypes.CDLL(None, use_errno=True)
    # The interpreter's own function would hold the GIL, which the listening thread needs.
    libc.execve(os.fsencode(command[0]), arguments, environment)
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def _array(words: "List[bytes]") -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _agree_once(listener: int) -> None:
    try:
        _answer_once(listener)
    except OSError as error:  # without an answer the kernel would wait for ever
        sys.stderr.write(f"the model's Python cannot be started in a sandbox: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def _answer_once(listener: int) -> None:
    question = bytearray(_QUESTION_BYTES)
    while True:
        try:
            fcntl.ioctl(listener, _RECEIVE, question, True)
            break
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the call was interrupted and will be repeated
                raise
    (number,) = _NUMBER.unpack_from(question)
    fcntl.ioctl(listener, _ANSWER, _CONTINUE.pack(number, 0, 0, _GO_ON))


if __name__ == "__main__":
    main(sys.argv[1:])
