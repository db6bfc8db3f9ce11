"""Settings of a generation."""

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

from pybackend_backends.text_requests import RequestError


class Sampling(NamedTuple):
    """How to generate: ``options`` are keyword arguments of ``generate``.

    The texts of ``stop`` end the answer, and are left in it. No seed stands for arbitrary random numbers.
    """

    max_tokens: int
    min_tokens: int
    seed: Any
    stop: List[str]
    options: Dict[str, Any]


def _whole(least: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        number = int(value)
        if isinstance(value, bool) or number != float(value) or not least <= number < 2**31:
            raise ValueError
        return number

    return check


def _number(least: float, most: float = 1e6) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        number = float(value)
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError
        return number

    return check


def _truth(value: Any) -> bool:
    known = {"true": True, "false": False, "1": True, "0": False}
    text = str(value).lower()
    if text not in known:
        raise ValueError
    return known[text]


def _texts(value: Any) -> List[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise ValueError
    return texts


_SETTINGS: Mapping[str, Tuple[Callable[[Any], Any], str]] = {
    "max_tokens": (_whole(1), "a whole number from 1 on"),
    "max_new_tokens": (_whole(1), "a whole number from 1 on"),
    "min_tokens": (_whole(0), "a whole number from 0 on"),
    "temperature": (_number(0.0), "a number from 0 on"),
    "top_p": (_number(0.0, 1.0), "a number from 0 to 1"),
    "top_k": (_whole(-1), "a whole number, or -1 for all"),
    "min_p": (_number(0.0, 1.0), "a number from 0 to 1"),
    "repetition_penalty": (_number(0.01), "a number above 0"),
    "do_sample": (_truth, "true or false"),
    "num_beams": (_whole(1), "a whole number from 1 on"),
    "seed": (_whole(0), "a whole number from 0 on"),
    "stop": (_texts, "a text or a list of texts"),
}

_OWN = frozenset({"max_tokens", "max_new_tokens", "min_tokens", "seed", "stop"})


def is_setting(name: str) -> bool:
    """Whether a request parameter is a sampling parameter."""
    return name in _SETTINGS


def read_sampling(given: Mapping[str, Any], default_max_tokens: int) -> Sampling:
    """Check settings and translate them; text stands for the number or truth that it spells."""
    values = {}
    for name, value in given.items():
        if name not in _SETTINGS:
            raise RequestError(f"unknown sampling parameter '{name}'; there are {', '.join(_SETTINGS)}.")
        check, expected = _SETTINGS[name]
        try:
            values[name] = check(value)
        except (ValueError, TypeError, OverflowError):
            raise RequestError(f"sampling parameter '{name}' must be {expected}, not {value!r}.") from None
    options = {name: value for name, value in values.items() if name not in _OWN}
    if options.get("temperature") == 0:
        options.update(do_sample=False)
        del options["temperature"]
    elif options.keys() & {"temperature", "top_p", "top_k", "min_p"}:
        options.setdefault("do_sample", True)
    if options.get("top_k") == -1:
        options["top_k"] = 0
    return Sampling(
        values.get("max_tokens", values.get("max_new_tokens", default_max_tokens)),
        values.get("min_tokens", 0),
        values.get("seed"),
        values.get("stop", []),
        options,
    )
