"""The outcome of a program that the host ran in a sandbox, as reported by the process that supervised it."""

import json
from typing import Any, NamedTuple, Optional


class Ending(NamedTuple):
    """How a program ended.

    Attributes:
        status: its exit status, negative for a signal; None if it was killed because its time ran out or the host gave
            up.
        left: number of processes that it left behind, which were killed.
    """

    status: Optional[int]
    left: int

    def to_json(self) -> str:
        """Encode for the host."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: "Any") -> "Ending":
        """Decode the result of :meth:`to_json`.

        Raises:
            ValueError: the text is something else.
        """
        document = json.loads(text)
        try:
            status, left = document["status"], document["left"]
        except (KeyError, TypeError):
            raise ValueError("it does not say how a program ended") from None
        if not (status is None or isinstance(status, int)) or not isinstance(left, int):
            raise ValueError("it does not say how a program ended")
        return cls(status, left)
