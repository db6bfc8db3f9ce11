"""ModelConfig and the look-ups in a parsed configuration."""

import json

import pytest

from pybackend_sdk.model_config import (
    ModelConfig,
    get_input_config_by_name,
    get_output_config_by_name,
    using_decoupled_model_transaction_policy,
)

WHERE = "in auto-complete-config function for model 'm'"
FP32 = {"name": "T", "data_type": "TYPE_FP32", "dims": [4]}


def _config(**fields):
    return ModelConfig(json.dumps({"name": "m", "max_batch_size": 0, "input": [], "output": [], **fields}))


def _raises(call, text):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == text


def test_as_dict_is_the_configuration_itself():
    config = _config()
    config.as_dict()["max_batch_size"] = 9
    assert config._model_config["max_batch_size"] == 9
    assert config.as_dict() is config._model_config


@pytest.mark.parametrize(("configured", "wanted"), [(0, 4), (4, 4), (4, 8), (0, 0)])
def test_max_batch_size(configured, wanted):
    config = _config(max_batch_size=configured)
    config.set_max_batch_size(wanted)
    assert config.as_dict()["max_batch_size"] == wanted


def test_a_larger_max_batch_size_stays():
    config = _config(max_batch_size=8)
    _raises(
        lambda: config.set_max_batch_size(4),
        "configuration specified max_batch_size 8, but in auto-complete-config function for model 'm' specified "
        "max_batch_size 4",
    )
    assert config.as_dict()["max_batch_size"] == 8


def test_dynamic_batching():
    config = _config()
    config.set_dynamic_batching()
    assert config.as_dict()["dynamic_batching"] == {}
    configured = _config(dynamic_batching={"preferred_batch_size": [4]})
    configured.set_dynamic_batching()
    assert configured.as_dict()["dynamic_batching"] == {"preferred_batch_size": [4]}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_beside_another_scheduler(scheduler):
    config = _config(**{scheduler: {}})
    _raises(
        config.set_dynamic_batching,
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'm' "
        "tries to set scheduling_choice as 'dynamic_batching'",
    )
    assert "dynamic_batching" not in config.as_dict()


def _add(config, kind):
    return {"input": config.add_input, "output": config.add_output}[kind]


KINDS = pytest.mark.parametrize("kind", ["input", "output"])


@KINDS
def test_tensors_are_added_in_order(kind):
    config = _config()
    for name in ("A", "B"):
        _add(config, kind)({**FP32, "name": name})
    assert [tensor["name"] for tensor in config.as_dict()[kind]] == ["A", "B"]
    assert config.as_dict()[kind][0] == {**FP32, "name": "A"}


@KINDS
def test_tensors_are_added_where_there_is_no_list_yet(kind):
    config = ModelConfig('{"name": "m"}')
    _add(config, kind)(FP32)
    config.set_max_batch_size(2)
    assert config.as_dict() == {"name": "m", kind: [FP32], "max_batch_size": 2}


def test_optional_inputs_are_added():
    config = _config()
    config.add_input({**FP32, "optional": True})
    assert config.as_dict()["input"] == [{**FP32, "optional": True}]


@KINDS
@pytest.mark.parametrize(
    "configured", [{"name": "T", "data_type": "TYPE_INVALID", "dims": []}, {"name": "T"}, {**FP32, "dims": []}]
)
def test_tensors_are_completed(kind, configured):
    config = _config(**{kind: [configured]})
    _add(config, kind)(FP32)
    assert config.as_dict()[kind] == [FP32]


@KINDS
def test_the_same_tensor_may_be_named_again(kind):
    config = _config(**{kind: [dict(FP32)]})
    _add(config, kind)(FP32)
    assert config.as_dict()[kind] == [FP32]


@KINDS
@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        ({"data_type": "TYPE_FP32", "dims": [4]}, "{kind} {where} is missing 'name' property."),
        ({}, "{kind} {where} is missing 'name' property."),
        ({"unknown": 1}, "{kind} {where} is missing 'name' property."),
        ({"name": "T", "dims": [4]}, "{kind} 'T' {where} is missing 'data_type' property."),
        ({"name": "T", "data_type": "TYPE_FP32"}, "{kind} 'T' {where} is missing 'dims' property."),
        ({**FP32, "reshape": 1}, "{kind} 'T' {where} contains property other than {allowed}."),
    ],
)
def test_properties(kind, tensor, text):
    allowed = {"input": "'name', 'data_type', 'dims' and 'optional'", "output": "'name', 'data_type' and 'dims'"}[kind]
    config = _config()
    _raises(lambda: _add(config, kind)(tensor), text.format(kind=kind, where=WHERE, allowed=allowed))
    assert config.as_dict()[kind] == []


def test_outputs_are_never_optional():
    _raises(
        lambda: _config().add_output({**FP32, "optional": True}),
        f"output 'T' {WHERE} contains property other than 'name', 'data_type' and 'dims'.",
    )


@KINDS
def test_another_datatype_than_configured(kind):
    config = _config(**{kind: [dict(FP32)]})
    _raises(
        lambda: _add(config, kind)({**FP32, "data_type": "TYPE_INT32"}),
        f"unable to load model 'm', configuration expects datatype TYPE_FP32 for {kind} 'T', model provides TYPE_INT32",
    )


@KINDS
@pytest.mark.parametrize("dims", [[5], [4, 1], (4,)])
def test_other_dims_than_configured(kind, dims):
    config = _config(**{kind: [dict(FP32)]})
    _raises(
        lambda: _add(config, kind)({**FP32, "dims": dims}),
        f"model 'm', tensor 'T': the model expects dims {dims} but the model configuration specifies dims [4]",
    )


def test_optional_other_than_configured():
    config = _config(input=[{**FP32, "optional": False}])
    config.add_input({**FP32, "optional": False})
    config.add_input(FP32)
    _raises(
        lambda: config.add_input({**FP32, "optional": True}),
        "model 'm', tensor 'T': the model expects optional True but the model configuration specifies optional False",
    )


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("section", [{}, {"model_transaction_policy": {}}])
def test_transaction_policy(section, decoupled):
    config = _config(**section)
    config.set_model_transaction_policy({"decoupled": decoupled})
    config.set_model_transaction_policy({"decoupled": decoupled})
    assert config.as_dict()["model_transaction_policy"] == {"decoupled": decoupled}


def test_transaction_policy_without_a_word():
    config = _config()
    config.set_model_transaction_policy({})
    assert config.as_dict()["model_transaction_policy"] == {}


def test_transaction_policy_with_other_properties():
    _raises(
        lambda: _config().set_model_transaction_policy({"decoupled": True, "other": 1}),
        "model transaction property in auto-complete-config function for model 'm' contains property other than "
        "'decoupled'.",
    )


def test_transaction_policy_other_than_configured():
    config = _config(model_transaction_policy={"decoupled": True})
    _raises(
        lambda: config.set_model_transaction_policy({"decoupled": False}),
        "trying to change decoupled property in auto-complete-config for model 'm', which is already set to 'True'.",
    )


def test_configuration_that_is_no_json():
    with pytest.raises(ValueError):
        ModelConfig("{")


def test_look_ups():
    config = {"input": [{"name": "A"}, {"name": "B"}], "output": [{"name": "Y"}]}
    assert get_input_config_by_name(config, "B") is config["input"][1]
    assert get_input_config_by_name(config, "Y") is None
    assert get_output_config_by_name(config, "Y") is config["output"][0]
    assert get_output_config_by_name(config, "A") is None
    assert get_input_config_by_name({}, "A") is get_output_config_by_name({}, "A") is None


@pytest.mark.parametrize(
    ("config", "decoupled"),
    [
        ({}, False),
        ({"model_transaction_policy": {}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
        ({"model_transaction_policy": {"decoupled": False}}, False),
    ],
)
def test_decoupled(config, decoupled):
    assert using_decoupled_model_transaction_policy(config) is decoupled
