"""Decides before a process starts whether its user reaches what it needs, and refuses a model that no user could run."""

from __future__ import annotations

import logging

from pybackend.errors import ErrorCode, ModelLoadError
from pybackend.sandbox.model_reach import ModelReach
from pybackend.sandbox.process_user import ProcessUser, server_user
from pybackend.sandbox.reach import is_enforced
from pybackend_wire.confinement import STRICT

log = logging.getLogger(__name__)


def check_reach(name: str, reach: ModelReach, user: ProcessUser) -> None:
    """Check that a user reaches what a model needs to run. Blocking.

    Raises:
        ModelLoadError: the user does not; the text says what to do.
    """
    blocked = reach.essential(user.account)
    if blocked is not None and is_enforced(blocked.place, user.account):
        why = f"{user.subject} cannot {blocked.place.verb} {blocked.place.path}{blocked.behind}"
        raise _refusal(name, f"it could not run, because {why}. {reach.advice(blocked, user)}")


def objection_to(separate: ProcessUser, name: str, reach: ModelReach, level: str) -> str:
    """Return the reason why a model must not have its own user but stay root; ``""`` if it may have it. Blocking.

    Raises:
        ModelLoadError: it can have neither, or may not stay root because its author closed the files.
    """
    of_operator, of_author = reach.of_operator(separate.account), reach.of_author(separate.account)
    blocked = of_operator or of_author
    if blocked is None:
        return ""
    closed = f"{blocked.place.path}{blocked.behind}"
    told = f"{separate.subject} cannot {blocked.place.verb} {closed}. {reach.advice(blocked, separate)}"
    if of_operator is None and level == STRICT:
        raise _refusal(name, f"at SANDBOX '{STRICT}' it must have its own user, but {told}")
    root = server_user()
    for_all = reach.essential(root.account)
    if for_all is not None and is_enforced(for_all.place, root.account):
        neither = (
            f"neither a separate user nor {root.subject} can {for_all.place.verb} {for_all.place.path}{for_all.behind}"
        )
        raise _refusal(name, f"it could not run, because {neither}. {reach.advice(for_all, root)}")
    if reach.essential(separate.account) is None and reach.of_author(root.account) is not None:
        return ""  # root would not reach everything either
    return told


def warn_of_closed_files(name: str, reach: ModelReach, user: ProcessUser, *, follows_links: bool) -> None:
    """Log the first file that a model may use and that is closed to its user. Blocking."""
    found = reach.unreached(user.account, follows_links=follows_links)
    if found is None:
        return
    path, blocked = found
    what = f"{user.subject} cannot {blocked.place.verb} {blocked.place.path}"
    reason = what if path == blocked.place.path else f"{path} is out of reach, because {what}"
    log.warning("model '%s' may miss a file: %s. %s", name, reason, reach.advice(blocked, user))


def _refusal(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(f"model '{name}' is not loaded: {why}", ErrorCode.UNAVAILABLE)
