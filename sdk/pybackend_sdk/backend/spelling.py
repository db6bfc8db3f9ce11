"""Finds the name that somebody meant."""

from typing import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that resembles a misspelt one most, ``""`` if none does. Case does not count."""
    from difflib import get_close_matches  # only mistakes need it: it costs a megabyte

    by_lower = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else ""
