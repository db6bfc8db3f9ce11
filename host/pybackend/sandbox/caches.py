"""The part of the operator's caches that a model reaches.

Downloaded weights are linked into its home. Directories that an operator names for what libraries keep are used in
place, where file permissions let the model's user do so.
"""

import os
from dataclasses import dataclass

from pybackend.sandbox.file_access import Account, Obstacle, may_add, obstacle
from pybackend.sandbox.file_rules import (
    HUGGING_FACE_HUB,
    chosen_caches,
    hugging_face_hub,
    shared_caches,
    visible_entries,
)
from pybackend_wire.confinement import TREE, WHOLE


@dataclass(frozen=True)
class Caches:
    """The part of the operator's caches that one process reaches."""

    offers: tuple[tuple[str, str, str], ...] = ()  # as in :class:`Confinement`
    refused: tuple[str, ...] = ()  # variables that name a directory which its user cannot use
    closed: tuple[Obstacle, ...] = ()  # places that keep its user from downloads that are there


def caches_for(operators_home: str, home: str, account: Account | None, *, shares_user: bool) -> Caches:
    """Find the operator's caches that a process reaches from its home. Blocking.

    Args:
        account: its user, None for the user of this process.
        shares_user: whether that is the operator's user, whose home directory the model sees as its own, to read.
    """
    offers = [(outside, os.path.join(home, name), TREE) for outside, name in shared_caches(operators_home)]
    refused = []
    for variable, path in chosen_caches().items():
        hub = hugging_face_hub(variable, path)
        if may_add(path, account) or (not hub and os.path.isdir(path) and not obstacle([path], account)):
            continue
        refused.append(variable)
        if hub and os.path.isdir(hub):
            offers.append((hub, os.path.join(home, HUGGING_FACE_HUB), TREE))
    if shares_user:
        for path, grows in visible_entries(operators_home):
            offers.append((path, os.path.join(home, os.path.basename(path)), TREE if grows else WHOLE))
    places = [obstacle([outside], account) for outside, _, _ in offers]
    reached = [
        (os.path.realpath(outside), inside, kind)
        for (outside, inside, kind), place in zip(offers, places, strict=True)
        if place is None
    ]
    return Caches(tuple(reached), tuple(refused), tuple(filter(None, places)))
