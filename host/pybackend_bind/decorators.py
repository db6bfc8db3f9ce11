"""Decorators for bound functions: from a list of requests to keyword arguments with arrays, and back.

A decorator nearer to the function sees what those above it have made of the requests: ``@fill_optionals`` and
``@group_by_keys`` come before ``@batch``, ``@group_by_values`` and ``@pad_batch`` after it, ``@first_value`` on either
side.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, Self

import numpy as np

from pybackend_bind.exceptions import PyTritonBadParameterError, PyTritonRuntimeError, PyTritonValidationError
from pybackend_bind.model_config import Tensor, TritonModelConfig
from pybackend_bind.requests import RUNNING

_CONTEXT = "triton_context"

Arrays = Mapping[str, np.ndarray]


class _Decorated:
    """A function and what is done around each call of it; works for methods, too."""

    def __init__(self, function: Callable[..., Any], around: Callable[..., Any]) -> None:
        if not callable(function) and not hasattr(function, "__get__"):
            raise PyTritonValidationError(f"a decorator is for a function, not for {type(function).__name__}")
        functools.update_wrapper(self, function)
        self._function = function
        self._around = around

    def __get__(self, instance: object, owner: type | None = None) -> Self:
        function: Any = self._function
        return type(self)(function.__get__(instance, owner), self._around)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], type):  # below @classmethod, which since CPython 3.13 binds the class itself
            return self._around(MethodType(self._function, args[0]), *args[1:], **kwargs)
        return self._around(self._function, *args, **kwargs)


def _decorator(around: Callable[..., Any]) -> Callable[[Callable[..., Any]], _Decorated]:
    """A decorator; ``around`` gets the function and the arguments of a call."""

    @functools.wraps(around)
    def decorate(function: Callable[..., Any]) -> _Decorated:
        return _Decorated(function, around)

    return decorate


class TritonContext:
    """The model for which a function runs, for ``@triton_context``."""

    @property
    def model_configs(self) -> _Configs:
        """By any function: its model's configuration."""
        return _Configs()


class _Configs:
    def __getitem__(self, _function: object) -> TritonModelConfig:
        return get_model_config()


def get_model_config(_wrapped: object = None, _instance: object = None) -> TritonModelConfig:
    """The model for which the calling function runs. Raises PyTritonValidationError: no server runs it."""
    try:
        return RUNNING.get()
    except LookupError:
        raise PyTritonValidationError(
            "this function is not run by a server: the decorators @first_value, @fill_optionals, @pad_batch and @triton_context, "
            "and results that are no dictionaries, need the model that it is bound to"
        ) from None


@_decorator
def triton_context(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with ``triton_context``, whose ``model_configs[function]`` is the model."""
    return function(*args, **{**kwargs, _CONTEXT: TritonContext()})


def batch_size_of(arrays: Arrays) -> int:
    """The number of samples in a request. Raises PyTritonValidationError: it has no inputs."""
    for array in arrays.values():
        return int(array.shape[0])
    raise PyTritonValidationError("a request has none of the optional inputs: nothing says how many samples it has")


def by_name(results: Any) -> Arrays:
    """Results as a dictionary: a list or tuple has the outputs in the order of ``bind``."""
    if isinstance(results, (dict, Mapping)):
        return results
    if not isinstance(results, (list, tuple)):
        raise PyTritonValidationError(
            f"a function returns a dictionary of arrays, or a list of them in the order of its outputs, not {type(results).__name__}"
        )
    outputs = get_model_config().outputs
    if len(results) != len(outputs):
        raise PyTritonValidationError(
            f"the function returned {len(results)} arrays, and the model has {len(outputs)} outputs"
        )
    return {str(output.name): array for output, array in zip(outputs, results, strict=True)}


@_decorator
def sample(function: Callable[..., Any], requests: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with the inputs of the only request by name; for models with ``batching=False``."""
    results = function(*args, **{**kwargs, **requests[0]})
    if inspect.isgenerator(results):
        return ([by_name(result)] for result in results)
    return _then(results, lambda found: [by_name(found)])


@_decorator
def batch(function: Callable[..., Any], requests: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call once with the inputs of all requests by name, joined along their first dimension.

    Split its results likewise.
    """
    names = requests[0].keys()
    if any(request.keys() != names for request in requests):
        raise PyTritonValidationError(
            "requests with different inputs cannot be joined: put @group_by_keys above @batch"
        )
    if len(requests) == 1:
        inputs = dict(requests[0].items())
    else:
        inputs = {name: np.concatenate([request[name] for request in requests]) for name in names}
    sizes = [batch_size_of(request) for request in requests]
    results = function(*args, **{**kwargs, **inputs})
    if inspect.isgenerator(results):
        return (_split(result, sizes) for result in results)
    return _then(results, lambda found: _split(found, sizes))


def _then(results: Any, convert: Callable[[Any], Any]) -> Any:
    """The results of a function, converted once they are there."""
    if inspect.isasyncgen(results):

        async def every() -> Any:
            async for found in results:
                yield convert(found)

        return every()
    if inspect.iscoroutine(results):

        async def awaited() -> Any:
            return convert(await results)

        return awaited()
    return convert(results)


def _split(results: Any, sizes: Sequence[int]) -> list[Arrays]:
    outputs, whole = by_name(results), sum(sizes)
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise PyTritonValidationError(
                f"the function returned {type(array).__name__} as output '{name}': return NumPy arrays"
            )
        if not array.ndim or array.shape[0] != whole:
            raise PyTritonValidationError(
                f"output '{name}' has shape {list(array.shape)}, and the function got {whole} samples: its first dimension must be {whole}"
            )
    if len(sizes) == 1:
        return [outputs]
    found: list[Arrays] = []
    first = 0
    for size in sizes:
        found.append({name: array[first : first + size] for name, array in outputs.items()})
        first += size
    return found


@_decorator
def group_by_keys(function: Callable[..., Any], requests: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call once for each group of requests that have the same inputs."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, request in enumerate(requests):
        groups.setdefault(tuple(sorted(request)), []).append(place)
    if len(groups) == 1:
        return function(requests, *args, **kwargs)
    found: list[Any] = [None] * len(requests)
    for places in groups.values():
        results = function([requests[place] for place in places], *args, **kwargs)
        if not isinstance(results, (list, tuple)) or len(results) != len(places):
            raise PyTritonValidationError(
                "under @group_by_keys a function returns a list with a result for each request of its group"
            )
        for place, result in zip(places, results, strict=True):
            found[place] = result
    return found


def group_by_values(
    *keys: str, pad_fn: Callable[[Sequence[Arrays]], Sequence[Arrays]] | None = None
) -> Callable[[Callable[..., Any]], _Decorated]:
    """Call once for each group of samples that have the same values in these inputs; below ``@batch``.

    ``pad_fn`` makes the results of all groups equal in shape, such as :class:`ConstantPadder`.
    """

    @_decorator
    def group(function: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
        if args and isinstance(args[0], (list, tuple)):
            raise PyTritonRuntimeError("@group_by_values comes below @batch")
        others = {_CONTEXT: inputs.pop(_CONTEXT)} if _CONTEXT in inputs else {}
        groups: dict[tuple[Any, ...], list[int]] = {}
        count = batch_size_of(inputs)
        for place in range(count):
            key = tuple(_hashable(inputs[name][place]) for name in keys if name in inputs)
            groups.setdefault(key, []).append(place)
        every = [
            by_name(function(*args, **{name: array[places] for name, array in inputs.items()}, **others))
            for places in groups.values()
        ]
        if pad_fn is not None:
            every = list(pad_fn(every))
        found = {}
        for name, first in every[0].items():
            arrays = [results[name] for results in every]
            joined = np.concatenate(arrays)
            if joined.shape[0] != count:
                raise PyTritonValidationError(
                    f"output '{name}' has {joined.shape[0]} samples, and the function got {count}"
                )
            found[name] = np.empty((count, *first.shape[1:]), joined.dtype)
            found[name][[place for places in groups.values() for place in places]] = joined
        return found

    return group


def _hashable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.shape, tuple(value.ravel().tolist()) if value.dtype == object else value.tobytes()
    return value


class ConstantPadder:
    """Makes arrays of the same name equal in shape, by a constant at their ends."""

    def __init__(self, pad_value: Any = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: Sequence[Arrays]) -> list[Arrays]:
        """The same batches, padded."""
        names = dict.fromkeys(name for arrays in batches_list for name in arrays)
        padded: list[dict[str, np.ndarray]] = [{} for _ in batches_list]
        for name in names:
            present = [arrays[name] for arrays in batches_list if name in arrays]
            if len({array.dtype.kind for array in present}) > 1 or len({array.ndim for array in present}) > 1:
                raise PyTritonRuntimeError(f"the arrays of '{name}' have different datatypes or numbers of dimensions")
            dtype = np.result_type(*present)
            shape = np.max([array.shape[1:] for array in present], axis=0)
            filler = self.pad_value if dtype.kind not in "SUO" else "" if dtype.kind == "U" else b""
            for place, arrays in enumerate(batches_list):
                if name in arrays:
                    array = arrays[name]
                    widths = [
                        (0, 0),
                        *((0, int(most - size)) for size, most in zip(array.shape[1:], shape, strict=True)),
                    ]
                    padded[place][name] = np.pad(array.astype(dtype), widths, constant_values=filler)
        return list(padded)


def fill_optionals(**defaults: np.ndarray) -> Callable[[Callable[..., Any]], _Decorated]:
    """Give requests the inputs that they lack. Defaults are arrays without the batch dimension."""

    @_decorator
    def fill(function: Callable[..., Any], requests: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        config = get_model_config()
        _check_defaults(defaults, config)
        for request in requests:
            lacking = [name for name in defaults if name not in request]
            count = batch_size_of(request) if config.batching and lacking else 0
            for name in lacking:
                default = defaults[name]
                request[name] = np.repeat(default[np.newaxis], count, axis=0) if config.batching else default
        return function(requests, *args, **kwargs)

    return fill


def _check_defaults(defaults: Arrays, config: TritonModelConfig) -> None:
    inputs: dict[str, Tensor] = {str(each.name): each for each in config.inputs}
    for name, default in defaults.items():
        wanted = inputs.get(name)
        if wanted is None:
            raise PyTritonBadParameterError(
                f"@fill_optionals has a default for '{name}', which is no input: {', '.join(inputs)}"
            )
        if not isinstance(default, np.ndarray):
            raise PyTritonBadParameterError(
                f"the default of '{name}' is of type {type(default).__name__}: use a NumPy array"
            )
        numpy = wanted.datatype.numpy
        if default.dtype != numpy and not (wanted.datatype.name == "BYTES" and default.dtype.kind in "OSU"):
            raise PyTritonBadParameterError(f"the default of '{name}' is {default.dtype}, and the input {numpy}")
        if not wanted.has_room_for(default.shape):
            raise PyTritonBadParameterError(
                f"the default of '{name}' has shape {list(default.shape)}, and the input {list(wanted.shape)}"
            )


@_decorator
def pad_batch(function: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
    """Repeat the last sample until the batch has a preferred size, or the largest one; below ``@batch``."""
    config = get_model_config()
    arrays = {name: array for name, array in inputs.items() if name != _CONTEXT}
    count = batch_size_of(arrays)
    sizes = sorted({*((config.batcher and config.batcher.preferred_batch_size) or ()), config.max_batch_size})
    wanted = next((size for size in sizes if size >= count), count)
    places = np.minimum(np.arange(wanted), count - 1)
    return function(*args, **{**inputs, **{name: array[places] for name, array in arrays.items()}})


def first_value(
    *keys: str, squeeze_single_values: bool = True, strict: bool = True
) -> Callable[[Callable[..., Any]], _Decorated]:
    """Replace these inputs by their first sample, as a scalar if it is a single value.

    With ``strict``, samples that differ are an error.
    """
    if _CONTEXT in keys:
        raise PyTritonBadParameterError(f"@first_value cannot replace '{_CONTEXT}', which is no input")

    def firsts(arrays: Arrays) -> Iterator[tuple[str, Any]]:
        for name in keys:
            if name not in arrays:
                continue
            array = arrays[name]
            if strict and any(not np.array_equal(array[0], other) for other in array[1:]):
                raise PyTritonRuntimeError(
                    f"the samples of input '{name}' differ: {array.tolist()}. Put @group_by_values('{name}') above @first_value, or use "
                    "strict=False"
                )
            first = array[0]
            is_single = squeeze_single_values and isinstance(first, np.ndarray) and first.size == 1
            yield name, first.reshape(-1)[0] if is_single else first

    @_decorator
    def replace(function: Callable[..., Any], *args: Any, **inputs: Any) -> Any:
        if not get_model_config().batching:
            raise PyTritonRuntimeError("@first_value is for models with batching")
        if set(inputs) - {_CONTEXT}:
            return function(*args, **{**inputs, **dict(firsts(inputs))})
        requests, *others = args
        for request in requests:
            request.update(dict(firsts(request)))
        return function(requests, *others, **inputs)

    return replace
