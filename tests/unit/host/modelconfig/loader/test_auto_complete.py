"""What a model's auto_complete_config may change, and what it may not."""

from typing import Any

import pytest

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.loader import merge_completed
from pybackend.modelconfig.parser import parse_config_json, parse_config_text

CONFIGURED = 'name: "m" backend: "python" max_batch_size: 2 input { name: "A" data_type: TYPE_FP32 dims: 1 }'


def document(text: str = "") -> dict[str, Any]:
    return parse_config_text(CONFIGURED + text, "x")


def test_tensors_batch_size_scheduler_and_policy_are_taken_over() -> None:
    completed = document() | {
        "max_batch_size": 8,
        "input": [{"name": "B", "data_type": "TYPE_INT8", "dims": [2], "optional": True}],
        "output": [{"name": "C", "data_type": "TYPE_STRING", "dims": [-1]}],
        "dynamic_batching": {"preferred_batch_size": [4]},
        "model_transaction_policy": {"decoupled": True},
    }
    merged = merge_completed(document(), completed)
    assert merged == parse_config_json(completed, "x")
    assert list(merged) == list(parse_config_json(completed, "x"))


@pytest.mark.parametrize(
    "edit",
    [
        {"instance_group": [{"count": 9}]},
        {"parameters": {"a": {"string_value": "b"}}},
        {"version_policy": {"all": {}}},
        {"name": "other"},
        {"backend": "other"},
        {"default_model_filename": "other.py"},
        {"no_such_field": object()},
        {"max_batch_size": None},
    ],
)
def test_other_edits_have_no_effect(edit: dict[str, Any]) -> None:
    assert merge_completed(document(), document() | edit) == document()


def test_what_is_missing_stays_as_configured() -> None:
    assert merge_completed(document(), {}) == document()


def test_the_configured_scheduler_keeps_its_settings() -> None:
    configured = document(" dynamic_batching { preferred_batch_size: 2 }")
    merged = merge_completed(configured, configured | {"dynamic_batching": {}})
    assert merged["dynamic_batching"]["preferred_batch_size"] == [2]


@pytest.mark.parametrize(
    ("configured", "returned"),
    [
        ("dynamic_batching", {"sequence_batching": {}}),
        ("dynamic_batching", {"dynamic_batching": {}, "sequence_batching": {}}),
        ("sequence_batching", {"dynamic_batching": {}}),
        ("dynamic_batching", {"ensemble_scheduling": {}}),
    ],
)
def test_another_scheduler_is_refused(configured: str, returned: dict[str, Any]) -> None:
    other = next(name for name in returned if name != configured)
    with pytest.raises(ModelConfigError) as caught:
        merge_completed(document(f" {configured} {{ }}"), returned)
    assert caught.value.message.startswith(
        f"Cannot update scheduling choice from {configured} to {other} when auto-completing."
    )
    assert caught.value.code is ErrorCode.INTERNAL


def test_two_schedulers_are_refused(snapshot) -> None:
    with pytest.raises(ModelConfigError) as caught:
        merge_completed(document(), {"dynamic_batching": {}, "sequence_batching": {}})
    assert caught.value.message == snapshot


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ({"max_batch_size": "many"}, "field 'max_batch_size': expected an integer"),
        ({"input": [{"name": "A", "dims": 3}]}, "field 'input[0].dims': expected a list, got 3"),
        (
            {"output": [{"name": "A", "data_type": "float"}]},
            "field 'output[0].data_type': expected one of TYPE_INVALID",
        ),
        (
            {"model_transaction_policy": {"decoupled": "yes"}},
            "field 'model_transaction_policy.decoupled': expected true",
        ),
        ({"dynamic_batching": {"delay": 1}}, "there is no field 'dynamic_batching.delay'."),
    ],
)
def test_malformed_parts_name_model_and_field(returned: dict[str, Any], expected: str, snapshot) -> None:
    with pytest.raises(ModelConfigError) as caught:
        merge_completed(document(), returned)
    assert caught.value.message == snapshot
