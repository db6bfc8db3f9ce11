"""Makes directories that a model may write, in places where other users may change everything meanwhile."""

import errno
import os
import stat

from pybackend.sandbox.file_access import Account, may_add
from pybackend.sandbox.removal import open_directory

_ON_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: str, account: Account | None) -> None:
    """Create a directory and those above it, where a user could. Blocking.

    They have the owner and the permissions of the directory that is there. No link is followed: the server may be root,
    and anyone who may write beside the directory could put one in its place at any moment.

    Raises OSError.

    Args:
        path: absolute.
        account: the user, None for that of this process with its rights.
    """
    names = os.path.normpath(path).lstrip("/").split("/")
    there, parent = _deepest(names)
    try:
        beside = f"/{'/'.join(names[:there])}"
        if not may_add(beside, account):
            raise PermissionError(errno.EACCES, f"the model's user may not write in {beside}")
        status = os.fstat(parent)
        for name in names[there:]:
            os.mkdir(name, 0o700, dir_fd=parent)
            made = open_directory(name, parent)
            os.close(parent)
            parent = made
            if os.listdir(made):
                raise OSError(errno.ENOTEMPTY, "another directory was put in its place")
            if os.geteuid() == 0:
                os.fchown(made, status.st_uid, status.st_gid)
            os.fchmod(made, stat.S_IMODE(status.st_mode))
    finally:
        os.close(parent)


def _deepest(names: list[str]) -> tuple[int, int]:
    """How many of the directories on a way exist, and a descriptor of the last one."""
    found, parent = 0, os.open("/", _ON_WAY)
    try:
        for name in names:
            inner = os.open(name, _ON_WAY, dir_fd=parent)
            os.close(parent)
            found, parent = found + 1, inner
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        os.close(parent)
        raise OSError(errno.ELOOP, "a link or a file is on the way to it") from None
    except BaseException:
        os.close(parent)
        raise
    return found, parent
