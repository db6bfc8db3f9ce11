"""Bounds of a configuration's numbers, and the page that lists them."""

import re
from pathlib import Path

import pytest

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.bounds import BOUNDS, MOST_CONFIG_BYTES, MOST_VALUES, check_bounds, check_extent
from pybackend.modelconfig.parser import parse_config_json

PAGE = Path(__file__).resolve().parents[4] / "docs/operators/limits.md"
NUMBERS = {"count", "batch_size", "priority_levels", "max_candidate_sequences"}


def document(field: str, size: int) -> dict[str, object]:
    """A configuration with so many entries in a field, or a number of this size."""
    *path, last = field.split(".")
    value: object = [{}] * size
    if last in NUMBERS and field != "instance_group":
        value = size
    elif last in {"metric_tags", "input_map", "output_map"}:
        value = {str(number): "" for number in range(size)}
    elif last in {"inputs", "parameters", "priority_queue_policy"}:
        value = {str(number): {} for number in range(size)}
    elif last in {"dims", "shape", "gpus", "versions", "preferred_batch_size", "buckets"}:
        value = [1] * size
    value = {last: value}
    for name in reversed(path):
        many = name in {
            "input",
            "output",
            "instance_group",
            "control_input",
            "control",
            "state",
            "initial_state",
            "step",
        }
        many |= name in {"model_warmup", "metric_control"}
        value = {name: [value] if many else value} if name != "*" else {"dims": value}
    assert isinstance(value, dict)
    return parse_config_json({"name": "m", **value}, "a test")


@pytest.mark.parametrize("field", BOUNDS)
def test_one_more_than_the_bound_is_refused(field):
    most = BOUNDS[field]
    shown = field.replace(".*", "")
    with pytest.raises(ModelConfigError) as caught:
        check_bounds(document(field, most + 1), "config.pbtxt")
    unit = "" if field.rpartition(".")[2] in NUMBERS else " entries"
    expected = f"'{shown}' of model 'm' is too large: {most + 1}{unit}, and the most is {most} (config.pbtxt)"
    assert caught.value.message == expected
    check_bounds(document(field, most), "config.pbtxt")


def test_instances_of_all_groups_count_together():
    groups = [{"count": 400, "gpus": [0, 1]}, {"count": 200}]
    check_bounds(parse_config_json({"instance_group": groups}, "a test"), "a test")
    with pytest.raises(ModelConfigError, match="1001 instances in all groups, and the most is 1000"):
        check_bounds(parse_config_json({"instance_group": [*groups, {}]}, "a test"), "a test")


def test_tags_count_by_their_length():
    check_bounds(parse_config_json({"metric_tags": {"a": "x" * 9_999}}, "a test"), "a test")
    with pytest.raises(ModelConfigError, match="'metric_tags' of model '' is too large: 10001 characters"):
        check_bounds(parse_config_json({"metric_tags": {"ab": "x" * 9_999}}, "a test"), "a test")


@pytest.mark.parametrize(
    "document",
    [
        [0] * (MOST_VALUES + 1),
        {"a": [[0] * 1000] * (MOST_VALUES // 1000)},
        {"a": "x" * (MOST_CONFIG_BYTES + 1)},
        {"x" * (MOST_CONFIG_BYTES + 1): 1},
        [["x" * 1000] * 100] * 30,
    ],
    ids=["list", "nested", "text", "key", "texts"],
)
def test_what_a_model_returns_is_measured_first(document):
    with pytest.raises(ModelConfigError, match="auto_complete_config returned a configuration that is too large"):
        check_extent({"input": document}, "auto_complete_config")


def test_what_is_within_the_measure():
    check_extent({"input": [{"name": "x" * 1000, "dims": [1] * 1000}] * 100, "none": None, "float": 0.5}, "x")


def test_the_page_lists_them():
    listed = re.findall(r"^\| `([a-z_.]+)` \| ([0-9,]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert listed == [(field.replace(".*", ""), f"{most:,}") for field, most in BOUNDS.items()]
