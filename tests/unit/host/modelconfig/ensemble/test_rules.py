"""What an ensemble's configuration must not say, with the text that users know each refusal by."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.ensemble import (
    UnrelatedStreams,
    most_inflight,
    part_names,
    part_names_on_disk,
    steps_of,
    stream_chains,
    validate_connections,
    with_decoupled,
)
from pybackend.modelconfig.loader import finish_ensemble, load_config
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import ModelConfig, from_document

MakeModel = Callable[..., Path]

IO = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'


def mapped(field: str, **names: str) -> str:
    return " ".join(f'{field} {{ key: "{key}" value: "{value}" }}' for key, value in names.items())


def step(model: str = "m", inputs: dict[str, str] | None = None, outputs: dict[str, str] | None = None) -> str:
    maps = mapped("input_map", **(inputs or {})) + mapped("output_map", **(outputs or {}))
    return f'step {{ model_name: "{model}" model_version: -1 {maps} }}'


def ensemble(*steps: str, io: str = IO, extra: str = "") -> str:
    return f'platform: "ensemble" {io} ensemble_scheduling {{ {" ".join(steps)} }} {extra}'


ONE = step("m", {"I": "IN"}, {"O": "OUT"})
"""A step that does it all."""


def config_of(text: str, name: str = "e") -> ModelConfig:
    return from_document(
        parse_config_text(f'name: "{name}" {text}', f"/r/{name}/config.pbtxt"), f"/r/{name}/config.pbtxt"
    )


GRAPH_FAULTS = {
    "no step": (ensemble(), "must specify 'step' for ensemble 'e'"),
    "no scheduling": (f'platform: "ensemble" {IO}', "must specify 'step' for ensemble 'e'"),
    "no model": (ensemble(step("", {"I": "IN"}, {"O": "OUT"})), "must specify 'model_name' in step 0 of ensemble 'e'"),
    "no input map": (ensemble(ONE, step("n", {}, {"O": "x"})), "must specify 'input_map' in step 1 of ensemble 'e'"),
    "no output map": (ensemble(ONE, step("n", {"I": "IN"})), "must specify 'output_map' in step 1 of ensemble 'e'"),
    "written twice": (
        ensemble(ONE, step("n", {"I": "IN"}, {"O": "OUT"})),
        "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 1",
    ),
    "written twice in a step": (
        ensemble(step("m", {"I": "IN"}, {"O": "OUT", "P": "OUT"})),
        "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 0",
    ),
    "input written": (
        ensemble(ONE, step("n", {"I": "OUT"}, {"O": "IN"})),
        "ensemble tensor 'IN' can appear in an output map only once for ensemble 'e' step 1",
    ),
    "input not used": (
        ensemble(step("m", {"I": "x"}, {"O": "OUT"})),
        "ensemble input 'IN' for ensemble e' is not used",
    ),
    "output not used": (
        ensemble(step("m", {"I": "IN"}, {"O": "x"})),
        "ensemble output 'OUT' for ensemble e' is not used",
    ),
    "output not written": (
        ensemble(step("m", {"I": "IN", "J": "x"}, {"O": "OUT"})),
        "output 'OUT' for ensemble 'e' is not written: 'x', which 'OUT' depends on, is in no step's output_map and no input of the ensemble",
    ),
    "output only read": (
        ensemble(step("m", {"I": "IN", "J": "OUT"}, {"O": "x"})),
        "output 'OUT' for ensemble 'e' is not written: 'OUT' is in no step's output_map and no input of the ensemble",
    ),
    "steps in a circle": (
        ensemble(step("m", {"I": "IN", "J": "y"}, {"O": "x"}), step("n", {"I": "x"}, {"O": "y", "P": "OUT"})),
        "output 'OUT' for ensemble 'e' is not written: the steps wait for each other's tensors: x <- y <- x",
    ),
    "unused tensor": (
        ensemble(step("m", {"I": "IN"}, {"O": "OUT", "P": "x"})),
        "ensemble tensor 'x' is unused in ensemble 'e'",
    ),
    "unused branch": (
        ensemble(ONE, step("m", {"I": "OUT"}, {"O": "x"}), step("m", {"I": "x"}, {"O": "y"})),
        "ensemble tensor 'x' is unused in ensemble 'e'",
    ),
    "unused circle": (
        ensemble(ONE, step("m", {"I": "y"}, {"O": "x"}), step("m", {"I": "x"}, {"O": "y"})),
        "ensemble tensor 'x' is unused in ensemble 'e'",
    ),
    "instance group": (
        ensemble(ONE, extra="instance_group { count: 2 }"),
        "instance group should not be specified for ensemble 'e'",
    ),
    "optimization": (ensemble(ONE, extra="optimization { }"), "optimization should not be specified for ensemble 'e'"),
    "warm-up": (
        ensemble(ONE, extra='model_warmup { name: "w" }'),
        "model_warmup can not be specified for ensemble 'e'",
    ),
    "no platform": (
        ensemble(ONE).replace('platform: "ensemble"', ""),
        "Ensemble model 'e' must have platform type 'ensemble' and empty backend type",
    ),
    "backend": (
        ensemble(ONE, extra='backend: "python"'),
        "Ensemble model 'e' must have platform type 'ensemble' and empty backend type",
    ),
    "no inputs": (
        ensemble(ONE, io='output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'),
        "must specify 'input' for e",
    ),
    "negative batch": (ensemble(ONE, extra="max_batch_size: -1"), "'max_batch_size' must be non-negative value for e"),
    "type of an input": (
        ensemble(ONE, io='input { name: "IN" dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'),
        "model input 'IN' must specify 'data_type' for e",
    ),
}


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(("text", "expected"), GRAPH_FAULTS.values(), ids=GRAPH_FAULTS)
def test_graph_faults(text: str, expected: str, snapshot) -> None:
    with pytest.raises(ModelConfigError) as refused:
        finish_ensemble(config_of(text))
    assert refused.value.message.startswith(expected)
    assert refused.value.message == snapshot
    assert refused.value.code is ErrorCode.INVALID_ARG


@pytest.mark.spec("srv-R17")
def test_an_input_that_is_mapped_twice_is_found_in_the_text(make_model: MakeModel) -> None:
    twice = (
        'step { model_name: "n" model_version: -1 input_map { key: "I" value: "x" } input_map { key: "I" value: "IN" } '
        'output_map { key: "O" value: "OUT" } }'
    )
    directory = make_model(ensemble(step("m", {"I": "IN"}, {"O": "x"}), twice))
    with pytest.raises(ModelConfigError) as refused:
        load_config(directory, auto_complete=True)
    assert refused.value.message == (
        "input 'I' in model 'n' is mapped to multiple ensemble tensors for ensemble 'm' step 1 "
        f"({directory}/config.pbtxt)"
    )


@pytest.mark.parametrize("auto_complete", [True, False])
def test_what_an_ensemble_is_loaded_as(make_model: MakeModel, auto_complete: bool) -> None:
    config = finish_ensemble(load_config(make_model(ensemble(ONE), files=()), auto_complete=auto_complete))
    assert (config.platform, config.backend, config.decoupled, config.warnings) == ("ensemble", "", False, ())
    assert config.document["instance_group"] == []
    assert "optimization" not in config.document
    assert config.document["version_policy"] == {"latest": {"num_versions": 1}}


ACCEPTED = {
    "fan out and in": ensemble(
        step("a", {"I": "IN"}, {"O": "x", "P": "y"}),
        step("b", {"I": "x"}, {"O": "z"}),
        step("c", {"I": "y", "J": "z", "K": "IN"}, {"O": "OUT"}),
    ),
    "any order": ensemble(step("b", {"I": "x"}, {"O": "OUT"}), step("a", {"I": "IN"}, {"O": "x"})),
    "a model twice": ensemble(step("a", {"I": "IN"}, {"O": "x"}), step("a", {"I": "x"}, {"O": "OUT"})),
    "one tensor for two inputs": ensemble(step("a", {"I": "IN", "J": "IN"}, {"O": "OUT"})),
    "an output that is an input": ensemble(
        ONE,
        io='input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "IN" data_type: TYPE_FP32 dims: 4 }',
    ),
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_graphs(text: str) -> None:
    finish_ensemble(config_of(text))


# --- parts ----------------------------------------------------------------------------------------------------------


def part(
    dims: str = "4",
    name: str = "m",
    data_type: str = "TYPE_FP32",
    batch: int = 0,
    decoupled: str = "false",
    more: str = "",
) -> ModelConfig:
    """A model with input I and output O."""
    return config_of(
        f'backend: "python" max_batch_size: {batch} input {{ name: "I" data_type: {data_type} dims: [ {dims} ] }} '
        f'output {{ name: "O" data_type: {data_type} dims: [ {dims} ] }} {more} '
        f"model_transaction_policy {{ decoupled: {decoupled} }}",
        name,
    )


def io(dims: str = "4") -> str:
    return (
        f'input {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] }} '
        f'output {{ name: "OUT" data_type: TYPE_FP32 dims: [ {dims} ] }}'
    )


CHAIN = ensemble(step("m", {"I": "IN"}, {"O": "x"}), step("n", {"I": "x"}, {"O": "OUT"}))
MORE_INPUTS = 'input { name: "J" data_type: TYPE_FP32 dims: 4 }'
STREAMS = ensemble(
    step("a", {"I": "IN"}, {"O": "x"}),
    step("b", {"I": "IN"}, {"O": "y"}),
    step("c", {"I": "x", "J": "y"}, {"O": "OUT"}),
)

PART_FAULTS = {
    "no such input": (
        ensemble(step("m", {"X": "IN"}, {"O": "OUT"})),
        [part()],
        "in ensemble e, ensemble tensor IN is mapping to non-existing input X in model m",
    ),
    "no such output": (
        ensemble(step("m", {"I": "IN"}, {"X": "OUT"})),
        [part()],
        "in ensemble e, ensemble tensor OUT is mapped from non-existing output X in model m",
    ),
    "input without tensor": (
        ensemble(ONE),
        [part(more=MORE_INPUTS)],
        "in ensemble e, input J in model m is not mapped to any ensemble tensors",
    ),
    "type of the input": (ensemble(ONE), [part(data_type="TYPE_INT32")], "in ensemble e, ensemble tensor IN"),
    "type between steps": (
        ensemble(
            step("m", {"I": "IN"}, {"P": "x"}),
            step("n", {"I": "x"}, {"O": "OUT"}),
        ),
        [part(more='output { name: "P" data_type: TYPE_STRING dims: 4 }'), part(name="n")],
        "in ensemble e, ensemble tensor x: inconsistent data type: TYPE_STRING is inferred from model m while TYPE_FP32 is inferred from model n",
    ),
    "shape": (ensemble(ONE), [part("5")], "in ensemble e, ensemble tensor IN"),
    "shape between steps": (
        ensemble(step("m", {"I": "IN"}, {"P": "x"}), step("n", {"I": "x"}, {"O": "OUT"})),
        [part(more='output { name: "P" data_type: TYPE_FP32 dims: [ 2, -1 ] }'), part(name="n")],
        "in ensemble e, ensemble tensor x: inconsistent shape: [2,-1] is inferred from model m while [4] is inferred from model n",
    ),
    "shape with batches": (
        ensemble(ONE, extra="max_batch_size: 2"),
        [part("2, 4", batch=2)],
        "in ensemble e, ensemble tensor IN",
    ),
    "batch size": (
        ensemble(ONE, extra="max_batch_size: 8"),
        [part(batch=4)],
        "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to be 4",
    ),
    "unrelated streams": (
        STREAMS,
        [part(decoupled="true"), part(decoupled="true"), part(more=MORE_INPUTS)],
        "in ensemble e, step of model 'c' receives inputs originated from different decoupled models",
    ),
}


@pytest.mark.spec("srv-R17")
@pytest.mark.parametrize(("text", "parts", "expected"), PART_FAULTS.values(), ids=PART_FAULTS)
def test_part_faults(text: str, parts: list[ModelConfig], expected: str, snapshot) -> None:
    with pytest.raises(ModelConfigError) as refused:
        validate_connections(finish_ensemble(config_of(text)), parts)
    assert refused.value.message.startswith(expected)
    assert refused.value.message == snapshot
    assert refused.value.code is ErrorCode.INVALID_ARG


FITTING = {
    "the same": (ensemble(ONE), [part()]),
    "variable": (ensemble(ONE), [part("-1")]),
    "variable outside": (ensemble(ONE, io=io("-1")), [part()]),
    "batches all through": (ensemble(ONE, extra="max_batch_size: 4"), [part(batch=8)]),
    "a part without batches": (ensemble(ONE, extra="max_batch_size: 4"), [part()]),
    "a part whose first dimension is the batch": (ensemble(ONE, extra="max_batch_size: 4"), [part("-1, 4")]),
    "an ensemble whose first dimension is the batch": (ensemble(ONE, io=io("-1, 4")), [part(batch=4)]),
    "an ensemble without batches": (ensemble(ONE), [part(batch=4)]),
    "an optional input left out": (ensemble(ONE), [part(more=MORE_INPUTS.replace("dims", "optional: true dims"))]),
    "one stream, taken twice": (
        ensemble(
            step("a", {"I": "IN"}, {"O": "x"}), step("b", {"I": "x"}, {"O": "y"}), step("c", {"I": "x", "J": "y"}, {"O": "OUT"})
        ),
        [part(decoupled="true"), part(), part(more=MORE_INPUTS)],
    ),
    "a stream within a stream": (
        ensemble(
            step("a", {"I": "IN"}, {"O": "x"}), step("b", {"I": "x"}, {"O": "y"}), step("c", {"I": "x", "J": "y"}, {"O": "OUT"})
        ),
        [part(decoupled="true"), part(decoupled="true"), part(more=MORE_INPUTS)],
    ),
    "two streams that do not meet": (
        ensemble(
            step("a", {"I": "IN"}, {"O": "OUT"}),
            step("b", {"I": "IN"}, {"O": "OUT2"}),
            io=IO + 'output { name: "OUT2" data_type: TYPE_FP32 dims: 4 }',
        ),
        [part(decoupled="true"), part(decoupled="true")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), FITTING.values(), ids=FITTING)
def test_parts_that_fit(text: str, parts: list[ModelConfig]) -> None:
    validate_connections(finish_ensemble(config_of(text)), parts)


def test_a_reshaped_tensor_counts_as_clients_see_it() -> None:
    reshaped = config_of(
        'backend: "python" input { name: "I" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 2 ] } } '
        'output { name: "O" data_type: TYPE_FP32 dims: 4 }',
        "m",
    )
    validate_connections(finish_ensemble(config_of(ensemble(ONE))), [reshaped])


# --- reading --------------------------------------------------------------------------------------------------------


def test_steps() -> None:
    config = config_of(
        ensemble(
            'step { model_name: "m" model_version: 3 input_map { key: "I" value: "IN" } output_map { key: "O" value: "x" } }',
            'step { model_name: "n" model_version: -1 input_map { key: "I" value: "x" } output_map { key: "O" value: "OUT" } }',
            "max_inflight_requests: 5",
        )
    )
    first, second = steps_of(config)
    assert (first.model_name, first.model_version, first.inputs, first.outputs) == ("m", "3", {"I": "IN"}, {"O": "x"})
    assert second.model_version == ""
    assert most_inflight(config) == 5
    assert part_names(config) == ("m", "n")
    assert part_names(part()) == ()


def test_parts_on_disk(make_model: MakeModel, tmp_path: Path) -> None:
    assert part_names_on_disk(make_model(CHAIN, name="e")) == ("m", "n")
    assert part_names_on_disk(make_model('backend: "python"', name="p")) == ()
    assert part_names_on_disk(make_model("ensemble_scheduling { nonsense", name="x")) == ()
    assert part_names_on_disk(make_model(None, name="none")) == ()
    assert part_names_on_disk(tmp_path / "absent") == ()


def test_a_decoupled_part_makes_the_ensemble_decoupled() -> None:
    config = config_of(ensemble(ONE)).with_warnings(("a",))
    assert with_decoupled(config).decoupled
    assert with_decoupled(config).document["model_transaction_policy"] == {"decoupled": True}
    assert with_decoupled(config).warnings == ("a",)
    assert not config.decoupled


def test_chains_of_streams() -> None:
    steps = steps_of(config_of(STREAMS))
    assert stream_chains(steps, [False, False, False]) == {"x": (), "y": (), "OUT": ()}
    assert stream_chains(steps, [True, False, False]) == {"x": (0,), "y": (), "OUT": (0,)}
    assert stream_chains(steps, [False, True, True]) == {"x": (), "y": (1,), "OUT": (1, 2)}
    with pytest.raises(UnrelatedStreams) as unrelated:
        stream_chains(steps, [True, True, False])
    assert unrelated.value.step == 2
