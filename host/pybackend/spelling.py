"""Finds the word that somebody meant."""

from collections.abc import Iterable
from difflib import get_close_matches

_SIMILARITY = 0.7


def closest(word: str, known: Iterable[str], similarity: float = _SIMILARITY) -> str:
    """The known word that resembles a misspelt one most, ``""`` if none does. Case does not count.

    ``similarity``, from 0 to 1, is how alike two words must be.
    """
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[found[0]] if found else ""
