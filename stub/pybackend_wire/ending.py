"""How a program has ended that the host had run in a sandbox: told by the process that has looked after it."""

import json
from typing import Any, NamedTuple, Optional


class Ending(NamedTuple):
    """The end of a program.

    Attributes:
        status: its exit status, negative for a signal; None if it was ended, because its time was up or nobody waited any more.
        left: how many processes it has left behind, which were ended.
    """

    status: Optional[int]
    left: int

    def to_json(self) -> str:
        """For the way to the host."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: "Any") -> "Ending":
        """What :meth:`to_json` made.

        Raises:
            ValueError: it is something else.
        """
        document = json.loads(text)
        try:
            status, left = document["status"], document["left"]
        except (KeyError, TypeError):
            raise ValueError("it does not tell how a program has ended") from None
        if not (status is None or isinstance(status, int)) or not isinstance(left, int):
            raise ValueError("it does not tell how a program has ended")
        return cls(status, left)
