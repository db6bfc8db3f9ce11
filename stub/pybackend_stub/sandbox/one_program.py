"""Becomes another program for the last time.

If the environment's Python is another program than the host's, a process that may start no programs must still become
that one. Its system call filter can neither look at paths nor count. So the filter has the kernel ask a listener, a
thread of the process itself, which says yes once. When the process becomes the other program, the thread ends and its
descriptor is closed; without a listener the kernel refuses for ever. The filter also prevents the new program from
listening.
"""

import ctypes
import errno
import fcntl
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


def become(listener: int, command: "List[str]", variables: "Dict[str, str]") -> None:
    """Run a program in place of this one; does not return.

    Args:
        listener: from :func:`pybackend_stub.sandbox.seccomp.install`; 0 if the filter has none.
        command: path of the program, and its arguments.
        variables: its whole environment.

    Raises:
        OSError: the program cannot be run.
    """
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
