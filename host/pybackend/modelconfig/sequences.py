"""A configuration's ``sequence_batching``: its rules, and its typed form."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pybackend.modelconfig.schema import BatchingConfig, ModelConfig
from pybackend_wire.dtypes import BY_CONFIG_NAME

DEFAULT_IDLE_US = 1_000_000
INITIAL_STATE_DIRECTORY = "initial_state"
"""Directory beside a model's versions with the files of initial states."""

_PAIRS = {"int32_false_true": "INT32", "fp32_false_true": "FP32", "bool_false_true": "BOOL"}
_CORRELATION_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


class ControlKind(StrEnum):
    """The information in a control tensor, by its name in config.pbtxt."""

    START = "CONTROL_SEQUENCE_START"
    READY = "CONTROL_SEQUENCE_READY"
    END = "CONTROL_SEQUENCE_END"
    CORRELATION_ID = "CONTROL_SEQUENCE_CORRID"


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """An input that the server adds to every request."""

    name: str
    kind: ControlKind
    datatype: str  # wire name
    false_true: tuple[float, float] = (0, 1)  # its two values, for all kinds but ``CORRELATION_ID``


@dataclass(frozen=True, slots=True)
class SequenceState:
    """A tensor that the server carries from one request of a sequence to the next."""

    input_name: str  # the input through which the model receives it
    output_name: str  # the output through which the model returns it
    datatype: str  # wire name
    dims: tuple[int, ...]  # without the batch dimension; -1 is any size
    initial_dims: tuple[int, ...]  # dimensions of the initial value
    initial_file: str = ""  # file with the initial bytes in :data:`INITIAL_STATE_DIRECTORY`; ``""`` for zeros


@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """How the requests of a sequence reach the same instance."""

    model_name: str  # for messages
    max_batch_size: int  # the model's; 0 if tensors carry no batch dimension
    slot_count: int  # number of sequences that one instance serves at a time
    idle_us: int = DEFAULT_IDLE_US  # how long a sequence may be idle before it ends
    controls: tuple[SequenceControl, ...] = ()  # inputs that tell the model the position of a request in its sequence
    states: tuple[SequenceState, ...] = ()  # tensors that the server keeps for the model
    iterative: bool = False  # each request is a separate sequence, executed until the model releases it
    oldest: BatchingConfig | None = None  # how batches form under the strategy ``oldest``; None under ``direct``
    delay_us: int = 0  # under ``direct``, how long a batch waits for more slots to be ready
    minimum_utilization: float = 0.0  # under ``direct``, the fraction of ready slots at which a batch does not wait


def is_iterative(config: ModelConfig) -> bool:
    """True if the model may reschedule a request for another execution."""
    return bool(config.document.get("sequence_batching", {}).get("iterative_sequence", False))


def hidden_outputs(config: ModelConfig) -> frozenset[str]:
    """Outputs for the server only: states that are not among the model's outputs."""
    states = config.document.get("sequence_batching", {}).get("state", ())
    return frozenset(state["output_name"] for state in states) - {tensor.name for tensor in config.outputs}


def sequences_of(document: Mapping[str, Any]) -> SequenceConfig:
    """The sequence batching in a complete and validated document."""
    batching, max_batch_size = document["sequence_batching"], document["max_batch_size"]
    items = max(1, max_batch_size)
    oldest, direct = batching.get("oldest"), batching.get("direct", {})
    slot_count, inner = items, None
    if oldest is not None:
        slot_count = oldest["max_candidate_sequences"] or items
        inner = BatchingConfig(
            max_batch_size=items,
            preferred_batch_sizes=frozenset(oldest["preferred_batch_size"]),
            max_queue_delay_us=oldest["max_queue_delay_microseconds"],
            preserve_ordering=oldest["preserve_ordering"],
        )
    return SequenceConfig(
        model_name=document["name"],
        max_batch_size=max_batch_size,
        slot_count=slot_count,
        idle_us=batching["max_sequence_idle_microseconds"] or DEFAULT_IDLE_US,
        controls=tuple(_control(tensor) for tensor in batching["control_input"]),
        states=tuple(_state(state) for state in batching["state"]),
        iterative=batching["iterative_sequence"],
        oldest=inner,
        delay_us=direct.get("max_queue_delay_microseconds", 0),
        minimum_utilization=direct.get("minimum_slot_utilization", 0.0),
    )


def _control(tensor: Mapping[str, Any]) -> SequenceControl:
    (control,) = tensor["control"]
    kind = ControlKind(control["kind"])
    if kind is ControlKind.CORRELATION_ID:
        return SequenceControl(tensor["name"], kind, BY_CONFIG_NAME[control["data_type"]].name)
    (field,) = [field for field in _PAIRS if control[field]]
    low, high = control[field]
    return SequenceControl(tensor["name"], kind, _PAIRS[field], (low, high))


def _state(state: Mapping[str, Any]) -> SequenceState:
    dims = tuple(state["dims"])
    initial = state["initial_state"][0] if state["initial_state"] else {}
    return SequenceState(
        input_name=state["input_name"],
        output_name=state["output_name"],
        datatype=BY_CONFIG_NAME[state["data_type"]].name,
        dims=dims,
        initial_dims=tuple(initial.get("dims", ())) or tuple(1 if dim < 0 else dim for dim in dims),
        initial_file=initial.get("data_file", ""),
    )


# --- rules ----------------------------------------------------------------------------------------------------------


def sequence_faults(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Violated rules of ``sequence_batching``: the reference's text, and advice."""
    batching = config.document["sequence_batching"]
    for text in _control_faults(batching["control_input"], {tensor.name for tensor in config.inputs}):
        yield text.replace("<model>", config.name), "See sequence_batching.control_input."
    utilization = batching.get("direct", {}).get("minimum_slot_utilization", 0.0)
    if not 0.0 <= utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        yield text, f"It is {utilization}."
    for text in _oldest_faults(batching.get("oldest", {}), max(1, config.max_batch_size)):
        yield f"{text} for {config.name}", f"See sequence_batching.oldest; max_batch_size is {config.max_batch_size}."
    for text in _state_faults(batching["state"], {tensor.name for tensor in config.inputs}):
        yield f"{text} for {config.name}", "See sequence_batching.state."


def _control_faults(tensors: list[Mapping[str, Any]], input_names: set[str]) -> Iterator[str]:
    kinds: set[str] = set()
    names: set[str] = set()
    for tensor in tensors:
        name = tensor["name"]
        if not name:
            yield "sequence batching control tensor must have a name for <model>"
        if name in names or len(tensor["control"]) > 1:
            yield f"sequence batching control tensor '{name}' is specified for multiple control kinds for <model>"
        if name in input_names:
            yield f"sequence batching control tensor '{name}' must not be an input of the model too for <model>"
        if not tensor["control"]:
            yield f"sequence batching control tensor '{name}' must specify a control for <model>"
        names.add(name)
        for control in tensor["control"]:
            kind = control["kind"]
            if kind in kinds:
                yield f"sequence batching specifies multiple {kind} tensors for <model>"
            kinds.add(kind)
            yield from _value_faults(control, kind)


def _value_faults(control: Mapping[str, Any], kind: str) -> Iterator[str]:
    given = [field for field in _PAIRS if control[field]]
    if kind == ControlKind.CORRELATION_ID:
        if given:
            yield f"sequence batching must not specify '{given[0]}' for {kind} for <model>"
        if control["data_type"] not in _CORRELATION_TYPES:
            allowed = f"{', '.join(_CORRELATION_TYPES[:-1])} and {_CORRELATION_TYPES[-1]}"
            yield f"unexpected data type for control {kind} for <model>. Allowed data types are {allowed}"
        return
    first, second, third = (f"'{field}'" for field in _PAIRS)
    if not given:
        yield f"sequence batching must specify either {first}, {second} or {third} for {kind} for <model>"
    if len(given) > 1:
        yield f"sequence batching specifies more than one from {first}, {second} and {third} for {kind} for <model>"
    for field in given:
        if len(control[field]) != 2:
            yield f"sequence batching control '{field}' must have exactly 2 entries for {kind} for <model>"


def _oldest_faults(oldest: Mapping[str, Any], most_items: int) -> Iterator[str]:
    for size in oldest.get("preferred_batch_size", ()):
        if size <= 0:
            yield "sequence batching preferred size must be positive"
        if size > most_items:
            yield "sequence batching preferred size must be <= max batch size"
    if oldest.get("max_candidate_sequences", 0) < 0:
        yield "sequence batching max candidate sequences must not be negative"


def _state_faults(states: list[Mapping[str, Any]], input_names: set[str]) -> Iterator[str]:
    inputs: set[str] = set()
    outputs: set[str] = set()
    for state in states:
        name = state["input_name"]
        subject = f"sequence batching state '{name}'"
        if not name or not state["output_name"]:
            yield "sequence batching state must specify 'input_name' and 'output_name'"
        if name in input_names or name in inputs or state["output_name"] in outputs:
            yield f"{subject} has a name that another tensor has"
        inputs.add(name)
        outputs.add(state["output_name"])
        if state["data_type"] not in BY_CONFIG_NAME:
            yield f"{subject} must specify 'data_type'"
        if not state["dims"] or not all(dim >= 1 or dim == -1 for dim in state["dims"]):
            yield f"{subject} must specify 'dims', each at least 1, or -1 for a variable size"
        for initial in state["initial_state"][:1]:
            yield from _initial_faults(subject, state, initial)


def _initial_faults(subject: str, state: Mapping[str, Any], initial: Mapping[str, Any]) -> Iterator[str]:
    if initial["data_type"] != state["data_type"]:
        yield f"{subject} has an initial_state of another 'data_type'"
    dims = initial["dims"]
    if len(dims) not in {0, len(state["dims"])} or any(
        dim < 1 or want not in {-1, dim} for want, dim in zip(state["dims"], dims, strict=False)
    ):
        yield f"{subject} has an initial_state whose 'dims' do not fit"
    if not initial.get("zero_data", False) and not initial.get("data_file", ""):
        yield f"{subject} has an initial_state without 'zero_data' or 'data_file'"
