"""Reshapes outputs to the form that clients expect, and validates them, or warns about them in the log."""

import logging
import time
from collections import Counter
from collections.abc import Sequence

from pybackend.errors import InferenceError
from pybackend.inference.request import InferenceRequest
from pybackend.inference.response import InferenceResponse
from pybackend.inference.tensor import OutputTensor
from pybackend.modelconfig.signature import ModelSignature, TensorSignature
from pybackend.observability.log_lines import about_model
from pybackend.spelling import closest
from pybackend_wire.dtypes import conversion

log = logging.getLogger(__name__)

NOT_CONFIGURED = "which its configuration does not have"

_SIMILAR = 0.6
"""How alike names of outputs must be; names are often short, such as OTU and OUT."""


class OutputForm:
    """Gives one version's responses the form that clients expect.

    If it validates outputs, except hidden ones, a wrong output turns the response into an error; so does a missing one,
    unless outputs ``may_be_missing``, as in the responses of a decoupled model.
    """

    def __init__(
        self, signature: ModelSignature, hidden: frozenset[str], *, validates: bool, may_be_missing: bool
    ) -> None:
        self._signature = signature
        self._hidden = hidden
        self._validates = validates
        self._may_be_missing = may_be_missing
        self._refusals = OutputRefusals(signature.model_name)

    def give_to(self, response: InferenceResponse, request: InferenceRequest) -> None:
        """Reshape a response's outputs, and validate them."""
        signature = self._signature
        for output in response.outputs if signature.has_reshape else ():
            tensor = signature.outputs.get(output.name)
            if tensor is not None:
                output.shape = signature.shape_for_client(tensor, output.shape)
        if self._validates and response.error is None:
            outputs = [output for output in response.outputs if output.name not in self._hidden]
            response.error = output_error(outputs, signature, request.batch_size)
            if response.error is None and not self._may_be_missing:
                response.error = self._missing(outputs, request)
            if response.error is not None:
                self._refusals.note(response.error.message, response.model_version)
                response.release()

    def _missing(self, outputs: Sequence[OutputTensor], request: InferenceRequest) -> InferenceError | None:
        """The error for an output that the request wants, or that is configured if it names none, and that is not there."""
        missing = missing_output(outputs, request, self._signature, self._hidden)
        if missing is None:
            return None
        return InferenceError(f"model '{self._signature.model_name}' {missing[1]}")


def output_form(
    signature: ModelSignature, hidden: frozenset[str], *, validates: bool, may_be_missing: bool = False
) -> OutputForm | None:
    """The output form of a version, None if outputs are sent exactly as returned; see :class:`OutputForm`."""
    if not (validates or signature.has_reshape):
        return None
    return OutputForm(signature, hidden, validates=validates, may_be_missing=may_be_missing)


def output_error(outputs: Sequence[OutputTensor], signature: ModelSignature, batch_size: int) -> InferenceError | None:
    """The first mismatch between a response's outputs, with shapes in client form, and the configuration; or None.

    The batch size is the first dimension of every output of a batching model.
    """
    if repeated := repeated_output([output.name for output in outputs]):
        return InferenceError(f"model '{signature.model_name}' {repeated}")
    for output in outputs:
        expected = signature.outputs.get(output.name)
        if expected is None:
            mismatch = f"returned output '{output.name}', {NOT_CONFIGURED}. {known_outputs(output.name, signature)}"
        else:
            dims = (batch_size, *expected.dims) if signature.max_batch_size else expected.dims
            mismatch = output_mismatch(output.name, output.datatype, output.shape, expected, dims)
        if mismatch:
            return InferenceError(f"model '{signature.model_name}' {mismatch}")
    return None


def repeated_output(names: Sequence[str]) -> str:
    """Which name several outputs of one response have, as the end of a sentence about the model; empty if none."""
    if len(names) == len(set(names)):
        return ""
    name, count = Counter(names).most_common(1)[0]
    return f"returned output '{name}' {count} times in one response"


def missing_output(
    outputs: Sequence[OutputTensor], request: InferenceRequest, signature: ModelSignature, hidden: frozenset[str]
) -> tuple[str, str] | None:
    """The first output that a request should get and that is not there, and that as the end of a sentence about the model."""
    names = [output.name for output in outputs]
    for name in request.requested_outputs or signature.outputs:
        if name not in names and name not in hidden and name not in request.dispensable_outputs:
            why = "which the request wants" if request.requested_outputs else "which its configuration has"
            others = f". It returned {', '.join(names)}" if names else ""
            return name, f"returned no output '{name}', {why}{others}"
    return None


def known_outputs(name: str, signature: ModelSignature) -> str:
    """A sentence about the outputs that a model has instead of one that it does not have."""
    near = closest(name, signature.outputs, _SIMILAR)
    return f"Did you mean {near}?" if near else f"Known: {', '.join(signature.outputs) or 'none'}."


def output_mismatch(
    name: str, datatype: str, shape: Sequence[int], expected: TensorSignature, dims: Sequence[int]
) -> str:
    """How an output differs from its configuration, as the end of a sentence about the model; empty if it does not.

    In the expected ``dims``, -1 stands for any size.
    """
    if datatype != expected.datatype:
        return f"returned output '{name}' as {datatype}, but its configuration says {expected.datatype}{conversion(expected.datatype)}"
    dims, sizes = tuple(dims) or (1,), tuple(shape) or (1,)
    if len(sizes) == len(dims) and all(dim in {-1, size} for dim, size in zip(dims, sizes, strict=True)):
        return ""
    return f"returned output '{name}' with shape {list(shape)}, but its configuration says {list(dims)}"


MOST_WARNINGS = 64
"""Most outputs of a version that are warned of; stubs choose the names."""

MOST_NAME_CHARACTERS = 200

_REPEATED = ""
"""Stands for all names that outputs share: one warning is enough."""

_ADVICE = "The log says this once. VALIDATE_OUTPUTS in the model's parameters turns such responses into errors"


COUNTED_S = 1.0
"""How long refusals like one that was written are only counted."""


class OutputRefusals:
    """Writes to the log which responses of a version were refused: one line for each kind, and how many more there were."""

    def __init__(self, model_name: str) -> None:
        self._name = model_name
        self._kinds: dict[str, tuple[float, int]] = {}  # by text: when it was last written, and refusals since

    def note(self, text: str, version: str) -> None:
        now_s = time.monotonic()
        written_s, count = self._kinds.pop(text, (-COUNTED_S, 0))
        if now_s - written_s < COUNTED_S:
            self._kinds[text] = written_s, count + 1
            return
        if len(self._kinds) >= MOST_WARNINGS:
            oldest = next(iter(self._kinds))
            if now_s - self._kinds[oldest][0] < COUNTED_S:
                return  # stubs choose the texts
            del self._kinds[oldest]
        self._kinds[text] = now_s, 0
        more = f" ({count} more like it before)" if count else ""
        log.error("refused a response: %s%s", text, more, extra=about_model(self._name, version))


class OutputWarnings:
    """Warns once for each output of a version that clients see, whichever instance returns it first."""

    def __init__(self, signature: ModelSignature, hidden: frozenset[str]) -> None:
        self._signature = signature
        self._hidden = hidden
        self._warned: set[str] = set()
        self._missing: set[str] = set()

    def on_new_output(self, name: str, datatype: str, shape: Sequence[int]) -> None:
        """A process has returned an output with this datatype and shape for the first time."""
        signature = self._signature
        expected = signature.outputs.get(name)
        if expected is None or name in self._hidden:
            return
        dims = expected.dims if expected.reshape is None else expected.reshape
        mismatch = output_mismatch(name, datatype, shape, expected, (-1, *dims) if signature.max_batch_size else dims)
        if mismatch:
            self._warn(name, f"{mismatch}. Clients get it as it is.")

    def on_repeated_output(self, names: Sequence[str]) -> None:
        """A process has returned several outputs of one name."""
        visible = [name[:MOST_NAME_CHARACTERS] for name in names if name not in self._hidden]
        if repeated := repeated_output(visible):
            taken = "Clients of infer get all of them, and whatever takes one output takes the first."
            self._warn(_REPEATED, f"{repeated}. {taken}")

    def on_few_outputs(self, outputs: Sequence[OutputTensor], request: InferenceRequest) -> None:
        """A process has returned fewer outputs than a request should get."""
        missing = missing_output(outputs, request, self._signature, self._hidden | self._missing)
        if missing is not None:
            name, text = missing
            self._missing.add(name)
            log.warning(
                "model '%s' %s. Clients get a response without it. %s", self._signature.model_name, text, _ADVICE
            )

    def on_dropped_output(self, name: str) -> None:
        """A process has dropped an output whose name is not configured."""
        name = name[:MOST_NAME_CHARACTERS]
        self._missing.add(closest(name, self._signature.outputs, _SIMILAR))  # the slip is told once
        known = known_outputs(name, self._signature)
        self._warn(name, f"returned output '{name}', {NOT_CONFIGURED}: clients never get it. {known}")

    def _warn(self, name: str, text: str) -> None:
        if name not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(name)
            log.warning("model '%s' %s %s", self._signature.model_name, text, _ADVICE)
