"""Writes a client for one model: a Python module with the names and types of its inputs and outputs, for editors and type checkers."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping

from pybackend.errors import ServerError
from pybackend_client.connection import Connection, model_path

_ARRAYS = {
    "BOOL": "np.bool_", "UINT8": "np.uint8", "UINT16": "np.uint16", "UINT32": "np.uint32", "UINT64": "np.uint64", "INT8": "np.int8",
    "INT16": "np.int16", "INT32": "np.int32", "INT64": "np.int64", "FP16": "np.float16", "FP32": "np.float32", "FP64": "np.float64",
    "BF16": "np.float32", "BYTES": "np.object_",
}  # fmt: skip

_TEMPLATE = '''"""A client for model {model!r}, written by `pybackend client {model}`. Write it again when the model changes."""

from __future__ import annotations

{imports}
import numpy as np
import numpy.typing as npt

from pybackend_client import Answer, Client, Model


@dataclass(frozen=True)
class {name}Outputs:
    """The outputs of one response. Those that the model leaves out are None."""

{fields}

    @classmethod
    def of(cls, answer: Answer) -> {name}Outputs:
        return cls({taken})


class {name}:
    """Model {model!r}. Options are those of calling a client, such as ``timeout_s``."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.model: Model = client({model!r}, **options)

    def {method}({arguments}) -> {result}:
        """Inputs:

{described}
        """
        given: dict[str, Any] = {{{given}}}
        sent = {{name: value for name, value in given.items() if value is not None}}
{body}
'''


def typed_client(connection: Connection, model: str) -> str:
    """The text of a module for a model; raises PybackendError if the server does not describe it."""
    metadata = connection.get(model_path(model, ""))
    config = connection.get(f"{model_path(model, '')}/config")
    try:
        optional = {each["name"] for each in config.get("input", ()) if each.get("optional")}
        inputs = {each["name"]: (each["datatype"], list(map(int, each["shape"]))) for each in metadata["inputs"]}
        outputs = {each["name"]: (each["datatype"], list(map(int, each["shape"]))) for each in metadata["outputs"]}
        streams = bool(config.get("model_transaction_policy", {}).get("decoupled"))
        return _text(model, inputs, optional, outputs, streams=streams)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerError(f"the server describes the model in a way that is not of the v2 protocol: {error}") from None


_Tensors = Mapping[str, tuple[str, list[int]]]


def _text(model: str, inputs: _Tensors, optional: set[str], outputs: _Tensors, *, streams: bool) -> str:
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", model) if part)
    name = f"Model{name}" if not name[:1].isalpha() else name
    arguments, fields = _identifiers(inputs), _identifiers(outputs)
    listed = ["self", "*"] if inputs else ["self"]
    ordered = [*(each for each in inputs if each not in optional), *(each for each in inputs if each in optional)]
    listed += [f"{arguments[each]}: npt.ArrayLike{' | None = None' if each in optional else ''}" for each in ordered]
    result = f"{name}Outputs"
    return _TEMPLATE.format(
        model=model,
        name=name,
        imports="\n".join(
            [
                *(["from collections.abc import Iterator"] if streams else []),
                "from dataclasses import dataclass",
                "from typing import Any",
                "",
            ]
        ),
        fields="\n".join(
            f"    {fields[each]}: npt.NDArray[{_ARRAYS[kind]}] | None  # {kind} {shape}"
            for each, (kind, shape) in outputs.items()
        )
        or "    pass",
        taken=", ".join(f"{fields[each]}=answer.get({each!r})" for each in outputs),
        method="stream" if streams else "infer",
        arguments=", ".join(listed),
        result=f"Iterator[{result}]" if streams else result,
        described="\n".join(f"        {arguments[each]}: {kind} {shape}" for each, (kind, shape) in inputs.items())
        or "        none",
        given=", ".join(f"{each!r}: {arguments[each]}" for each in inputs),
        body=f"        for answer in self.model.stream(**sent):\n            yield {result}.of(answer)"
        if streams
        else f"        return {result}.of(self.model.infer(**sent))",
    )


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Names of tensors as names in Python, each a different one."""
    found: dict[str, str] = {}
    taken = {"self", "cls", "of", "given", "sent", "answer", "Any", "np", "npt"}
    for name in names:
        word = re.sub(r"\W", "_", name, flags=re.ASCII)
        word = f"_{word}" if not word or word[0].isdigit() else word
        while word in taken or keyword.iskeyword(word):
            word += "_"
        taken.add(word)
        found[name] = word
    return found
