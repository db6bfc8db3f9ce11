"""Words in texts for people: the one that somebody meant, and where a long text ends."""

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


def cut_between_words(text: str, most: int) -> str:
    """The text, or its beginning of ``most`` characters.

    That ends between two words, since a part of a path would lead nowhere, unless one word is the greater part of it.
    """
    if len(text) <= most:
        return text
    words = text[: most + 1].rpartition(" ")[0]
    return f"{words} ..." if len(words) > most // 2 else f"{text[:most]}..."
