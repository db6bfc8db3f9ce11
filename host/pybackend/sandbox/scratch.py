"""Private directories for models' processes: created and removed with them, or removed by the next server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pybackend.sandbox.private_room import PrivateRoom, room_places

_OWN, _PASSED_BY_OTHERS = 0o700, 0o711


class ScratchRoom:
    """The directory for the private directories of one server's models; it exists on disk only from the first one on."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._room = PrivateRoom(places)

    def make(self, uid: int, gid: int, within: str = "") -> str:
        """Create a directory that only one user can use; -1 for the user of this process.

        Args:
            within: directory from :meth:`make_common` to create it in, "" for anywhere.

        Raises:
            OSError: no place is usable.
        """
        owner = (uid, gid) if uid >= 0 else None
        return str(self._room.make(_OWN, owner=owner, within=Path(within) if within else None))

    def make_common(self) -> str:
        """Create a directory for directories of several users; only this process can create them there.

        Raises:
            OSError: no place is usable.
        """
        return str(self._room.make(_PASSED_BY_OTHERS))

    def remove(self, path: str) -> None:
        """Remove a directory with everything a model has put there. The model's processes are gone."""
        self._room.remove(Path(path))

    def close(self) -> None:
        """Remove everything."""
        self._room.close()

    @property
    def places(self) -> list[str]:
        """The places of servers' rooms."""
        return [str(place) for place in self._room.places]


def scratch_places(server_directory: Path) -> list[Path]:
    """Return the places for private directories of models, the best first."""
    runtime = [Path("/run/pybackend")] if os.geteuid() == 0 else []
    return [*runtime, *room_places(server_directory)]
