"""The users that a model's process can have, as file permissions see them and as messages name them."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from pybackend.sandbox.reach import Account


@dataclass(frozen=True)
class ProcessUser:
    """A user that a model's process could have.

    Attributes:
        account: for checks; None for the user of this process with its rights.
        subject: for sentences.
        listed_as: its name in an access control list; "" if the number differs at every start, or if it is root.
    """

    account: Account | None
    subject: str
    listed_as: str = ""


def separate_user(uid: int, gid: int) -> ProcessUser:
    """A user that the server assigns. No list of permissions can name it, because the number differs at every start."""
    return ProcessUser(Account(uid, frozenset({gid})), "other users")


def given_user(uid: int, gid: int) -> ProcessUser:
    """A user that the model's configuration names."""
    return ProcessUser(Account(uid, frozenset({gid})), f"user {uid}, which SANDBOX_UID names,", str(uid))


def user_of(uid: int) -> ProcessUser:
    """A user of the machine, with the groups that a login gives."""
    try:
        entry = pwd.getpwuid(uid)
        groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    except (KeyError, OSError):
        groups = frozenset()
    return ProcessUser(Account(uid, groups), f"user {name_of(uid)}")


def server_user() -> ProcessUser:
    """The server's own user. A process of a model loses root's privileges, and with them access to closed places."""
    if os.geteuid() == 0:
        groups = frozenset({os.getegid(), *os.getgroups()})
        return ProcessUser(Account(0, groups), "root without privileges")
    name = name_of(os.geteuid())
    return ProcessUser(None, f"the server's user {name}", name)


def name_of(uid: int) -> str:
    """The name of a user; the number for one without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
