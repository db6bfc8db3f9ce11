"""Log probabilities."""

from dataclasses import dataclass


@dataclass
class Logprob:
    """Of one token."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
