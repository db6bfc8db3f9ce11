"""What the rules between fields accept, and those about GPUs; tests/e2e/repository/test_wrong_configurations.py breaks
each of the others."""

import pytest

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.normalisation import with_scheduling
from pybackend.modelconfig.parser import parse_config_text
from pybackend.modelconfig.schema import from_document
from pybackend.modelconfig.validation import validate

IN = 'input { name: "I" data_type: TYPE_FP32 dims: 4 }'
OUT = 'output { name: "O" data_type: TYPE_FP32 dims: 4 }'


def check(text: str, gpu_count: int = 0, backend: str = "python") -> None:
    document = parse_config_text(f'name: "m" backend: "{backend}" {text}', "/r/m/config.pbtxt")
    validate(from_document(with_scheduling(document, gpu_count), "/r/m/config.pbtxt"), gpu_count)


def tensor(body: str) -> str:
    return f"input {{ {body} }} {OUT}"


def batching(body: str) -> str:
    return f"{IN} {OUT} max_batch_size: 8 dynamic_batching {{ {body} }}"


def group(body: str) -> str:
    return f"{IN} {OUT} instance_group {{ {body} }}"


NOT_HERE = [
    (group("kind: KIND_GPU"), "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"),
    (
        group('name: "g" kind: KIND_GPU gpus: 0'),
        "instance group g of model m has kind KIND_GPU but server does not support GPUs",
    ),
    (group("gpus: 0"), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
]


@pytest.mark.parametrize(("text", "expected"), NOT_HERE)
def test_gpus_that_are_not_there(text: str, expected: str, snapshot) -> None:
    with pytest.raises(ModelConfigError) as caught:
        check(text)
    assert caught.value.message.startswith(expected)
    assert caught.value.message == snapshot
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(ModelConfigError) as caught:
        check(group("kind: KIND_GPU gpus: [ 1, 7 ]"), gpu_count=2)
    assert caught.value.message.startswith(
        "instance group m_0 of model m specifies invalid or unsupported gpu id 7. GPUs with at least the minimum "
        "required CUDA compute compatibility of 6.000000 are: 0, 1"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{IN} {OUT}",
        tensor('name: "O" data_type: TYPE_FP32 dims: 4'),  # an output may bear an input's name
        tensor(
            'name: "X" data_type: TYPE_FP32 dims: 1 reshape { } } max_batch_size: 1 input { name: "Y" data_type: '
            "TYPE_STRING dims: -1"
        ),
        tensor('name: "X" data_type: TYPE_FP32 dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }'),
        tensor('name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ]'),
        f"{IN} {OUT} dynamic_batching {{ }}",
        batching(
            "preferred_batch_size: [ 1, 8 ] priority_levels: 2 default_priority_level: 2 priority_queue_policy { "
            "key: 2 value { timeout_action: DELAY } }"
        ),
        batching("preserve_ordering: true priority_levels: 1 default_priority_level: 1"),
        group("kind: KIND_AUTO"),
        group("kind: KIND_CPU count: 3 } instance_group { kind: KIND_MODEL passive: true"),
    ],
)
def test_accepted(text: str) -> None:
    check(text)


def test_a_backend_that_computes_on_the_cpu_gets_no_gpu(snapshot) -> None:
    check(group("kind: KIND_AUTO"), gpu_count=2, backend="sklearn")
    with pytest.raises(ModelConfigError) as raised:
        check(group("kind: KIND_GPU"), gpu_count=2, backend="sklearn")
    assert str(raised.value).startswith(
        "instance group m_0 of model m has kind KIND_GPU but backend 'sklearn' computes on the CPU alone"
    )
    assert str(raised.value) == snapshot


def test_gpus_are_accepted_where_they_are() -> None:
    check(group("kind: KIND_GPU gpus: [ 0, 1 ]"), gpu_count=2)
    check(group("kind: KIND_GPU"), gpu_count=1)
