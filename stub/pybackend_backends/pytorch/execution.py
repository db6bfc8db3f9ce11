"""Runs a program on the inputs of requests, and finds each output in its result."""

from typing import Any, Callable, ContextManager, Dict, Mapping, Sequence

import torch

from pybackend_backends.pytorch.arguments import Results
from pybackend_backends.pytorch.programs import Program
from pybackend_backends.pytorch.tensors import datatype_of
from pybackend_sdk.error import TritonModelException

_TENSOR = torch.Tensor


class Execution:
    """A program with the names and the rules of one model.

    Args:
        arguments: the argument's name for the name of each input.
        outputs: data types, such as ``TYPE_FP32``, by the names of outputs in config.pbtxt, in order.
        device: where inputs go; ``""`` or ``cpu`` to leave them where they are.
        guard: entered around each run, such as ``torch.inference_mode``.
    """

    def __init__(
        self,
        program: Program,
        arguments: Mapping[str, str],
        outputs: Mapping[str, str],
        device: str,
        guard: Callable[[], ContextManager[Any]],
    ) -> None:
        self._call = program.call
        self._arguments = arguments
        self._data_types = list(outputs.values())
        self._results = Results(list(outputs))
        self._device = "" if device == "cpu" else device
        self._guard = guard

    def run(self, inputs: Dict[str, Any], names: Sequence[str]) -> Dict[str, Any]:
        """Compute all outputs from inputs, both by their names in config.pbtxt.

        Raises:
            TritonModelException: the model failed, or its result does not fit the configuration.
        """
        arguments = self._arguments
        values = {arguments[name]: value for name, value in inputs.items()}
        if self._device:
            values = {name: _moved(value, self._device) for name, value in values.items()}
        try:
            with self._guard():
                result = self._call(values)
        except Exception as error:  # noqa: BLE001  the model's code raises anything
            raise TritonModelException(f"PyTorch execute failure: {error}") from None
        outputs = dict(zip(self._results.names, self._results.pick(result)))
        for (name, value), data_type in zip(outputs.items(), self._data_types):
            provided = "TYPE_" + (datatype_of(value.dtype) if isinstance(value, _TENSOR) else "STRING")
            if provided != data_type:
                raise TritonModelException(
                    f"configuration expects datatype {data_type} for output '{name}', model provides {provided}"
                )
        return outputs


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, _TENSOR) else value
