"""Which input of config.pbtxt is which argument of ``forward``, and which output is which part of its result.

Triton's conventions: inputs have the names of arguments, or end in ``__<index>``, or are listed in the order of the
arguments. Needs no torch.
"""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from pybackend_sdk.error import TritonModelException

_INDEXED = re.compile(r".*__(\d{1,6})\Z", re.DOTALL)
_RESULT = re.compile(r"RESULT(?:\[(.*)\])?\Z", re.DOTALL)


class Argument(NamedTuple):
    """An argument of ``forward``; config.pbtxt may use one of its aliases."""

    name: str
    required: bool = True  # whether the call fails without it
    aliases: Tuple[str, ...] = ()
    strings: bool = False  # whether it is a list of strings


def match_inputs(model_name: str, arguments: Sequence[Argument], inputs: Sequence[str]) -> Dict[str, str]:
    """The argument's name for the name of each input.

    ``arguments`` are all that ``forward`` has, in order, without ``self``.
    """
    places = _by_name(arguments, inputs)
    if places is None:
        places = _by_index(inputs)
    if places is None:
        places = list(range(len(inputs)))
    required = sum(argument.required for argument in arguments)
    if not required <= len(inputs) <= len(arguments):
        raise TritonModelException(
            f"unable to load model '{model_name}', configuration expects {len(inputs)} inputs, model provides "
            f"{len(arguments)}: config.pbtxt has {_listed(inputs)}; forward has {_listed_arguments(arguments)}"
        )
    missing = [argument.name for place, argument in enumerate(arguments) if argument.required and place not in places]
    if missing or len(set(places)) < len(places) or max(places, default=-1) >= len(arguments):
        raise TritonModelException(
            f"unable to load model '{model_name}', the inputs {_listed(inputs)} of config.pbtxt do not name each "
            f"argument of forward once: {_listed_arguments(arguments)}. Inputs are named as the arguments, or end in "
            "__0, __1 and so on, or are listed in the order of the arguments."
        )
    return {name: arguments[place].name for name, place in zip(inputs, places)}


def _by_name(arguments: Sequence[Argument], inputs: Sequence[str]) -> Optional[List[int]]:
    known: Dict[str, int] = {}
    for place, argument in enumerate(arguments):
        known[argument.name] = place
        for alias in argument.aliases:
            known.setdefault(alias, place)
    return [known[name] for name in inputs] if all(name in known for name in inputs) else None


def _by_index(names: Sequence[str]) -> Optional[List[int]]:
    matches = [_INDEXED.match(name) for name in names]
    return [int(match.group(1)) for match in matches if match] if all(matches) else None


class Results:
    """Finds each output of config.pbtxt in what ``forward`` returned: by key in a dictionary, by index or order in a tuple."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self.names = list(outputs)
        self._places = _by_index(outputs) or list(range(len(self.names)))
        paths = [_RESULT.match(name) for name in outputs]
        self._keys = [path.group(1) if path and path.group(1) else name for path, name in zip(paths, outputs)]
        if paths and all(paths):
            self._places = [int(key) if key.isdigit() else 0 for key in self._keys]

    def pick(self, result: Any) -> List[Any]:
        """Return the value of each output, in the order of config.pbtxt."""
        if isinstance(result, dict):
            try:
                return [result[key] for key in self._keys]
            except KeyError:
                raise TritonModelException(
                    f"config.pbtxt has the outputs {_listed(self.names)}, but the model returned a dictionary with "
                    f"{_listed([str(key) for key in result])}."
                ) from None
        values = result if isinstance(result, (tuple, list)) and not _is_strings(result) else (result,)
        if max(self._places, default=-1) >= len(values):
            raise TritonModelException(
                f"configuration expects {len(self.names)} outputs, model provides {len(values)}: config.pbtxt has "
                f"{_listed(self.names)}."
            )
        return [values[place] for place in self._places]


def _is_strings(result: Sequence[Any]) -> bool:
    return isinstance(result, list) and len(result) > 0 and isinstance(result[0], str)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _listed_arguments(arguments: Sequence[Argument]) -> str:
    return (
        ", ".join(f"'{argument.name}'" + ("" if argument.required else " (optional)") for argument in arguments)
        or "none"
    )
