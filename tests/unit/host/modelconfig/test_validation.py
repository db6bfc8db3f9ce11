"""Each rule between fields, with the text that users know it by."""

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


REFUSED = [
    (
        f"{IN} {OUT} max_batch_size: -1",
        "'max_batch_size' must be non-negative value for m. It is -1: write 0 for a model that gets no batches.",
    ),
    (tensor("data_type: TYPE_FP32 dims: 1"), "model input must specify 'name' for m"),
    (tensor('name: "X" dims: 1'), "model input 'X' must specify 'data_type' for m"),
    (tensor('name: "X" data_type: TYPE_FP32'), "model input 'X' must specify 'dims' for m"),
    (IN + 'output { name: "X" dims: 1 }', "model output 'X' must specify 'data_type' for m"),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: [ 2, 0 ]'),
        "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: -2'),
        "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: 1 reshape { }'),
        "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 0 ] }'),
        "model input 'X' reshape dimensions must be integer >= 1",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 2, 3 ] }'),
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: 4 reshape { } } max_batch_size: 2 input { name: "Y" '),
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: [ 2, -1, 6 ] reshape { shape: [ 6, -1, 2 ] }'),
        "model input 'X' has different size for dims and reshape for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 dims: [ -1, -1 ] reshape { shape: -1 }'),
        "model input 'X' has different number of variable-size dimensions for dims and reshape for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_FP32 format: FORMAT_NHWC dims: [ 1, 2 ]'),
        "model input NHWC/NCHW require 3 dims for m",
    ),
    (
        tensor('name: "X" data_type: TYPE_INT32 dims: 1 is_shape_tensor: true'),
        "model input 'X' must not set the TensorRT flag 'is_shape_tensor' for m",
    ),
    (
        IN + 'output { name: "X" data_type: TYPE_INT32 dims: 1 is_non_linear_format_io: true }',
        "model output 'X' must not set the TensorRT flag 'is_non_linear_format_io' for m",
    ),
    (IN + IN + OUT, "model input 'I' is specified 2 times for m"),
    (IN + OUT + OUT + OUT, "model output 'O' is specified 3 times for m"),
    (
        f"{IN} {OUT} batch_input {{ data_type: TYPE_INT8 source_input: 'I' }}",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for m (",
    ),
    (f"{IN} {OUT} batch_input {{ data_type: TYPE_INT32 }}", "batch input must have exactly one 'source_input' for m"),
    (batching("preferred_batch_size: [ 4, 0 ]"), "dynamic batching preferred size must be positive for m"),
    (batching("preferred_batch_size: [ 4, 9 ]"), "dynamic batching preferred size must be <= max batch size for m"),
    (
        f"{IN} {OUT} dynamic_batching {{ preferred_batch_size: 1 }}",
        "dynamic batching preferred size must be <= max batch size for m",
    ),
    (batching("priority_levels: 3"), "default priority level must be in range [1, 3] for m"),
    (batching("priority_levels: 3 default_priority_level: 4"), "default priority level must be in range [1, 3] for m"),
    (
        batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } }"),
        "priority queue policy must have priority level in range [1, 2] for m",
    ),
    (
        batching("priority_queue_policy { key: 0 value { } }"),
        "priority queue policy must have priority level in range [1, 0] for m",
    ),
    (
        batching("preserve_ordering: true priority_levels: 2 default_priority_level: 1"),
        "Only one priority level is allowed when 'preserve_ordering' is true for m",
    ),
    (
        batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY }"),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (
        batching(
            "preserve_ordering: true priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 1 value "
            "{ timeout_action: DELAY } }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
    ),
    (group("kind: KIND_GPU"), "instance group m_0 of model m has kind KIND_GPU but server does not support GPUs"),
    (
        group('name: "g" kind: KIND_GPU gpus: 0'),
        "instance group g of model m has kind KIND_GPU but server does not support GPUs",
    ),
    (group("kind: KIND_CPU gpus: 0"), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    (group("gpus: 0"), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
    (
        group("kind: KIND_MODEL gpus: 0"),
        "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs",
    ),
    (group("count: -2"), "instance group m_0 of model m has count -2"),
    (group("passive: true"), "all instance groups of model m are passive"),
    (f"{IN} {OUT} model_metrics {{ metric_control {{ }} }}", "metric control must specify 'metric_identifier'"),
    (
        f"{IN} {OUT} model_metrics {{ metric_control {{ metric_identifier {{ }} }} }}",
        "metric identifier must specify non-empty 'family'",
    ),
    (
        f"{IN} {OUT} model_metrics {{ metric_control {{ metric_identifier {{ family: 'f' }} }} }}",
        "metric control must specify 'histogram_options'",
    ),
    (
        IN + OUT + 'model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { } } }',
        "histogram options must specify non-empty 'buckets'",
    ),
]


@pytest.mark.parametrize(("text", "expected"), REFUSED, ids=[expected for _, expected in REFUSED])
def test_refused(text: str, expected: str, snapshot) -> None:
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
