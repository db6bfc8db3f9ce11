"""Defaults that depend on other fields, and the instances that come of them."""

from typing import Any

import pytest

from pybackend.modelconfig.normalisation import with_policies, with_scheduling
from pybackend.modelconfig.parser import FIELD_NAMES, parse_config_text
from pybackend.modelconfig.schema import InstanceSpec, from_document, instances


def document(text: str) -> dict[str, Any]:
    return parse_config_text(f'name: "m" {text}', "x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"latest": {"num_versions": 1}}),
        ("version_policy { }", {"latest": {"num_versions": 1}}),
        ("version_policy { latest { } }", {"latest": {"num_versions": 1}}),
        ("version_policy { latest { num_versions: 3 } }", {"latest": {"num_versions": 3}}),
        ("version_policy { all { } }", {"all": {}}),
        ("version_policy { specific { versions: 2 } }", {"specific": {"versions": [2]}}),
    ],
)
def test_version_policy(text: str, expected: dict[str, Any]) -> None:
    assert with_policies(document(text))["version_policy"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_batch_size: 8 dynamic_batching { }", [8]),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 2, 4 ] }", [2, 4]),
        ("dynamic_batching { }", []),
    ],
)
def test_preferred_batch_sizes(text: str, expected: list[int]) -> None:
    assert with_scheduling(document(text), 0)["dynamic_batching"]["preferred_batch_size"] == expected


def test_no_scheduler_is_made_up() -> None:
    normal = with_scheduling(with_policies(document("max_batch_size: 8")), 0)
    assert not {"dynamic_batching", "sequence_batching", "ensemble_scheduling"} & set(normal)
    assert list(normal) == [name for name in FIELD_NAMES if name in normal]


def test_normalising_twice_changes_nothing() -> None:
    once = with_scheduling(with_policies(document("max_batch_size: 4 dynamic_batching { } instance_group { }")), 2)
    assert with_scheduling(with_policies(once), 2) == once


def spec(name: str, group: str, kind: str = "CPU", device_id: int = 0, passive: bool = False) -> InstanceSpec:
    return InstanceSpec(name, group, kind, device_id, passive, "")


@pytest.mark.parametrize(
    ("text", "gpu_count", "expected"),
    [
        ("", 0, [spec("m_0", "m")]),
        ("instance_group { count: 2 }", 0, [spec("m_0_0", "m_0"), spec("m_0_1", "m_0")]),
        (
            'instance_group [ { kind: KIND_CPU }, { name: "own" kind: KIND_MODEL }, { kind: KIND_CPU passive: true } ]',
            0,
            [spec("m_0_0", "m_0"), spec("own_0", "own", "MODEL"), spec("m_2_0", "m_2", passive=True)],
        ),
        ("", 2, [spec("m_0", "m", "GPU", 0), spec("m_0", "m", "GPU", 1)]),
        (
            "instance_group { kind: KIND_GPU count: 2 gpus: [ 1, 3 ] }",
            4,
            [spec(f"m_0_{index}", "m_0", "GPU", gpu) for index in (0, 1) for gpu in (1, 3)],
        ),
        ("instance_group { kind: KIND_AUTO gpus: 1 }", 2, [spec("m_0_0", "m_0", "GPU", 1)]),
        ("instance_group { kind: KIND_CPU }", 2, [spec("m_0_0", "m_0")]),
        ("instance_group { kind: KIND_MODEL }", 2, [spec("m_0_0", "m_0", "MODEL")]),
        ('backend: "onnxruntime"', 2, [spec("m_0", "m", "GPU", 0), spec("m_0", "m", "GPU", 1)]),
        *((f'backend: "{name}"', 2, [spec("m_0", "m")]) for name in ("fil", "litert", "openvino", "sklearn")),
        ('backend: "fil" instance_group { count: 2 }', 2, [spec("m_0_0", "m_0"), spec("m_0_1", "m_0")]),
    ],
)
def test_instances(text: str, gpu_count: int, expected: list[InstanceSpec]) -> None:
    config = from_document(with_scheduling(document(text), gpu_count), "x")
    assert instances(config) == expected


def test_the_host_policy_reaches_the_instance() -> None:
    config = from_document(with_scheduling(document('instance_group { host_policy: "p" }'), 0), "x")
    assert [instance.host_policy for instance in instances(config)] == ["p"]
