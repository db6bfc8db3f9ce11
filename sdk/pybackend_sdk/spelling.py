"""Finds the name that somebody meant."""

from typing import Iterable

_SIMILARITY = 0.6


def closest(name: str, known: Iterable[str], similarity: float = _SIMILARITY) -> str:
    """The known name that resembles a misspelt one most, ``""`` if none does. Case does not count.

    ``similarity`` says how alike two names must be, from 0 to 1.
    """
    by_lower = {each.lower(): each for each in known}
    if not by_lower:
        return ""
    from difflib import get_close_matches  # only mistakes need it: it costs a megabyte

    found = get_close_matches(name.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[found[0]] if found else ""
