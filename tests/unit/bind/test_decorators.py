"""What decorators make of requests and of results. What needs a server is in tests/bind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pybackend_bind.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    get_model_config,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
)
from pybackend_bind.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonValidationError
from pybackend_bind.model_config import DynamicBatcher, Tensor, TritonModelConfig
from pybackend_bind.requests import RUNNING, Request

pytestmark = pytest.mark.spec("srv-P15")


@pytest.fixture(autouse=True)
def running() -> Iterator[TritonModelConfig]:
    """A model with these tensors runs."""
    inputs = [Tensor((-1,), np.int64, "a"), Tensor((1,), np.int64, "b", optional=True), Tensor((1,), bytes, "s")]
    batcher = DynamicBatcher(preferred_batch_size=[4, 2])
    config = TritonModelConfig(
        "model", inputs=inputs, outputs=[Tensor((-1,), np.int64, "out")], max_batch_size=8, batcher=batcher
    )
    token = RUNNING.set(config)
    yield config
    RUNNING.reset(token)


def request(**inputs: object) -> Request:
    return Request({name: np.asarray(values) for name, values in inputs.items()})


def test_batch_joins_requests_and_splits_results() -> None:
    @batch
    def function(a):
        assert a.tolist() == [[1], [2], [3]]
        return {"out": 10 * a}

    found = function([request(a=[[1], [2]]), request(a=[[3]])])
    assert [result["out"].tolist() for result in found] == [[[10], [20]], [[30]]]


def test_batch_splits_what_a_generator_yields() -> None:
    @batch
    def function(a):
        yield {"out": a}
        yield [2 * a]

    found = list(function([request(a=[[1]]), request(a=[[2]])]))
    assert [[result["out"].tolist() for result in results] for results in found] == [[[[1]], [[2]]], [[[2]], [[4]]]]


def test_batch_refuses_requests_with_different_inputs() -> None:
    with pytest.raises(PyTritonValidationError, match="put @group_by_keys above @batch"):
        batch(dict)([request(a=[[1]]), request(a=[[1]], b=[[1]])])


def test_group_by_keys_calls_once_for_each_set_of_inputs() -> None:
    seen = []

    @group_by_keys
    @batch
    def function(a, b=None):
        seen.append(len(a))
        return {"out": a if b is None else a + b}

    requests = [request(a=[[1]]), request(a=[[2]], b=[[10]]), request(a=[[3]])]
    assert [result["out"].tolist() for result in function(requests)] == [[[1]], [[12]], [[3]]]
    assert sorted(seen) == [1, 2]


def test_group_by_values_calls_once_for_each_value() -> None:
    seen = []

    @batch
    @group_by_values("b", "s")
    def function(a, b, s):
        seen.append((b.tolist(), s.tolist()))
        return {"out": a * 10}

    found = function([request(a=[[1], [2], [3]], b=[[7], [8], [7]], s=np.array([[b"x"], [b"x"], [b"x"]], object))])
    assert found[0]["out"].tolist() == [[10], [20], [30]]
    assert seen == [([[7], [7]], [[b"x"], [b"x"]]), ([[8]], [[b"x"]])]


def test_group_by_values_pads_results_of_different_sizes() -> None:
    @batch
    @group_by_values("b", pad_fn=ConstantPadder(-1))
    def function(a, b):
        return {"out": np.repeat(a, int(b[0, 0]), axis=1)}

    found = function([request(a=[[5], [6]], b=[[1], [3]])])
    assert found[0]["out"].tolist() == [[5, -1, -1], [6, 6, 6]]


def test_group_by_values_is_for_arrays() -> None:
    with pytest.raises(PyTritonRuntimeError, match="@group_by_values comes below @batch"):
        group_by_values("a")(batch(dict))([request(a=[[1]])])


def test_padding_keeps_texts_and_refuses_mixtures() -> None:
    padded = ConstantPadder()([{"s": np.array([[b"ab"]])}, {"s": np.array([[b"c", b"def"]])}])
    assert [each["s"].tolist() for each in padded] == [[[b"ab", b""]], [[b"c", b"def"]]]
    with pytest.raises(PyTritonRuntimeError, match="different datatypes"):
        ConstantPadder()([{"s": np.array([[b"ab"]])}, {"s": np.array([[1]])}])


@pytest.mark.parametrize(("count", "padded"), [(1, 2), (2, 2), (3, 4), (5, 8), (8, 8), (9, 9)])
def test_pad_batch_repeats_the_last_sample(count: int, padded: int) -> None:
    @pad_batch
    def function(a):
        return a

    found = function(a=np.arange(count).reshape(-1, 1))
    assert found.ravel().tolist() == [*range(count), *[count - 1] * (padded - count)]


def test_first_value_makes_scalars_of_requests_and_of_arrays() -> None:
    @first_value("b", "missing")
    def of_arrays(a, b):
        return a, b

    @first_value("b", squeeze_single_values=False, strict=False)
    def of_requests(requests):
        return requests

    a, b = of_arrays(a=np.array([[1], [2]]), b=np.array([[7], [7]]))
    assert (a.tolist(), b, type(b)) == ([[1], [2]], 7, np.int64)
    assert of_requests([request(a=[[1]], b=[[7], [8]])])[0]["b"].tolist() == [7]
    with pytest.raises(PyTritonRuntimeError, match=r"the samples of input 'b' differ: \[\[7\], \[8\]\]"):
        of_arrays(a=np.array([[1], [2]]), b=np.array([[7], [8]]))


def test_first_value_needs_batches(running: TritonModelConfig) -> None:
    running.batching = False
    with pytest.raises(PyTritonRuntimeError, match="for models with batching"):
        first_value("a")(dict)(a=np.array([1]))


def test_fill_optionals_gives_each_sample_the_default(running: TritonModelConfig) -> None:
    @fill_optionals(b=np.array([7]))
    def function(requests):
        return [each["b"].tolist() for each in requests]

    assert function([request(a=[[1], [2]]), request(a=[[1]], b=[[3]])]) == [[[7], [7]], [[3]]]
    running.batching = False
    assert function([request(a=[1])]) == [[7]]


@pytest.mark.parametrize(
    ("default", "text"),
    [
        ({"c": np.array([1])}, "'c', which is no input: a, b, s"),
        ({"b": 1}, "of type int: use a NumPy array"),
        ({"b": np.array([1.0])}, "is float64, and the input int64"),
        ({"b": np.array([1, 2])}, r"has shape \[2\], and the input \[1\]"),
    ],
)
def test_fill_optionals_refuses_wrong_defaults(default, text) -> None:
    with pytest.raises(PyTritonBadParameterError, match=text):
        fill_optionals(**default)(list)([request(a=[[1]])])


def test_sample_takes_one_request() -> None:
    assert sample(lambda a: [a + 1])([request(a=[1])])[0]["out"].tolist() == [2]


def test_decorators_work_on_methods_of_every_kind() -> None:
    class Model:
        @batch
        def method(self, a):
            return {"out": a}

        @classmethod
        @batch
        def of_class(cls, a):
            return {"out": a}

        @staticmethod
        @batch
        def static(a):
            return {"out": a}

    model = Model()
    for function in (model.method, model.of_class, model.static, Model.static):
        assert function([request(a=[[1]])])[0]["out"].tolist() == [[1]]
    assert model.method.__name__ == "method"


def test_without_a_server_the_model_is_not_known() -> None:
    import contextvars

    with pytest.raises(PyTritonValidationError, match="this function is not run by a server"):
        contextvars.Context().run(get_model_config)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda a: [a, a], "the function returned 2 arrays, and the model has 1 outputs"),
        (lambda a: a, "not ndarray"),
        (lambda a: {"out": 3}, "returned int as output 'out'"),
        (lambda a: {"out": a[:0]}, r"output 'out' has shape \[0, 1\], and the function got 1 samples"),
    ],
)
def test_batch_refuses_wrong_results(function, text) -> None:
    with pytest.raises(PyTritonValidationError, match=text):
        batch(function)([request(a=[[1]])])


def test_a_decorator_is_for_functions() -> None:
    with pytest.raises(PyTritonValidationError, match="a decorator is for a function, not for int"):
        batch(3)  # type: ignore[arg-type]
