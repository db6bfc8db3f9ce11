"""A configuration's ``model_warmup``: samples, with their bytes, that instances run before they accept requests."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.author_files import read_beneath, read_start_beneath
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.modelconfig.signature import ModelSignature
from pybackend_wire.bytes_tensor import LENGTH_BYTES, BytesTensorError, decode_elements
from pybackend_wire.dtypes import BY_CONFIG_NAME, DATATYPES, DataType

WARMUP_DIRECTORY = "warmup"
"""Directory in a model's directory with the files of samples."""

MOST_WARMUP_BYTES = 1024**3
"""Limit on the tensors of all samples: the server keeps them for restarted instances."""

MOST_TENSORS = 100_000
"""Limit on the tensors in the requests of one execution."""

MOST_STRING_BYTES = 32 * 1024**2
"""Limit on the elements of a string tensor, which are checked one by one."""

_RANDOM_BELOW = 128
"""Upper bound of random whole numbers. It fits every datatype and most vocabularies and lookup tables."""


@dataclass(frozen=True, slots=True)
class WarmupTensor:
    """One input of a sample."""

    name: str
    datatype: str  # wire name, e.g. ``FP32``.
    shape: tuple[int, ...]  # as the model receives it, with a batch dimension of 1 if it batches
    data: bytes  # the bytes in wire form


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample."""

    name: str
    batch_size: int  # number of single-item requests in each execution
    count: int  # number of executions
    inputs: tuple[WarmupTensor, ...]  # inputs of each request


def warmup_samples(config: ModelConfig, signature: ModelSignature, model_directory: Path) -> tuple[WarmupSample, ...]:
    """The samples to run, in configured order, without those of batch size 0.

    Reads their files, so this may take a while.
    """
    samples = []
    budget = _Budget(MOST_WARMUP_BYTES)
    for sample in config.document["model_warmup"]:
        reader = _SampleReader(config, signature, model_directory, sample["name"], budget)
        inputs = reader.inputs(sample["inputs"], sample["batch_size"])
        if sample["batch_size"] > 0:
            samples.append(WarmupSample(sample["name"], sample["batch_size"], sample["count"] or 1, inputs))
    return tuple(samples)


def check_samples(config: ModelConfig, model_directory: Path) -> None:
    """Check what is wrong with the samples whatever the model's inputs are, such as a missing file. Blocking."""
    unknown = ModelSignature(config.name, config.max_batch_size, {}, {})
    budget = _Budget(MOST_WARMUP_BYTES)
    for sample in config.document["model_warmup"]:
        reader = _SampleReader(config, unknown, model_directory, sample["name"], budget)
        for name, given in sample["inputs"].items():
            reader.tensor(name, given)


@dataclass(slots=True)
class _Budget:
    """The remaining budget for samples that are still unread."""

    left_bytes: int


@dataclass(frozen=True, slots=True)
class _SampleReader:
    config: ModelConfig
    signature: ModelSignature
    model_directory: Path
    sample_name: str
    budget: _Budget

    def inputs(self, inputs: Mapping[str, Mapping[str, Any]], batch_size: int) -> tuple[WarmupTensor, ...]:
        """All inputs, in the model's order, checked."""
        known = self.signature.inputs
        if len(inputs) * batch_size > MOST_TENSORS:
            raise self._wrong(
                f"batch_size {batch_size} makes {len(inputs) * batch_size} tensors, and the most is {MOST_TENSORS}"
            )
        # Sequence batchers add inputs, which a sample must supply.
        adds_inputs = self.config.scheduling is Scheduling.SEQUENCE_BATCHING
        for name in inputs:
            if name not in known and not adds_inputs:
                inputs_there_are = f"The model's inputs are {_names(known)}" if known else "The model has no inputs"
                raise self._wrong(f"unexpected input '{name}'. {inputs_there_are}")
        missing = [name for name, tensor in known.items() if not tensor.optional and name not in inputs]
        if missing:
            raise self._wrong(f"there is no input {_names(missing)}, which the model needs")
        ordered = [*(name for name in known if name in inputs), *(name for name in inputs if name not in known)]
        return tuple(self.tensor(name, inputs[name]) for name in ordered)

    def tensor(self, name: str, given: Mapping[str, Any]) -> WarmupTensor:
        """One input, checked; against the model's if that is known."""
        expected = self.signature.inputs.get(name)
        datatype = BY_CONFIG_NAME.get(given["data_type"])
        dims = tuple(given["dims"])
        if any(dim < 0 for dim in dims):
            raise self._wrong(
                f"warmup setting expects all variable-size dimensions are specified for input '{name}'. It has dims "
                f"{list(dims)}"
            )
        if datatype is None or (expected is not None and datatype.name != expected.datatype):
            wanted = "a data_type" if expected is None else DATATYPES[expected.datatype].config_name
            raise self._wrong(f"input '{name}' has data_type {given['data_type']}, the model expects {wanted}")
        if expected is not None and not _fits(dims, expected.dims):
            raise self._wrong(f"input '{name}' has dims {list(dims)}, the model expects {list(expected.dims)}")
        shape = (1, *dims) if self.signature.max_batch_size else dims
        count = prod(dims)
        self._spend(name, dims, count * (datatype.itemsize or LENGTH_BYTES))
        data = self._data(name, datatype, count, given)
        if expected is not None:
            shape = tuple(self.signature.shape_for_model(expected, shape))
        return WarmupTensor(name, datatype.name, shape, data)

    def _spend(self, name: str, dims: tuple[int, ...], nbytes: int) -> None:
        if nbytes > self.budget.left_bytes:
            raise self._wrong(
                f"input '{name}' has dims {list(dims)}, {nbytes} bytes: all samples together exceed the limit of "
                f"{MOST_WARMUP_BYTES} bytes"
            )
        self.budget.left_bytes -= nbytes

    def _data(self, name: str, datatype: DataType, count: int, given: Mapping[str, Any]) -> bytes:
        # Which member is set decides, not its value: zero_data: false gives zeros too, as in the reference.
        if "input_data_file" in given:
            return self._file_data(name, datatype, count, given["input_data_file"])
        if "random_data" in given:
            return _random(datatype, count)
        if "zero_data" in given:
            return bytes(count * (datatype.itemsize or LENGTH_BYTES))
        raise self._wrong(
            f"warmup setting expects input '{name}' to have input_data_type set. Set one of zero_data: true, "
            "random_data: true and input_data_file"
        )

    def _file_data(self, name: str, datatype: DataType, count: int, filename: str) -> bytes:
        directory = self.model_directory / WARMUP_DIRECTORY
        path = Path(os.path.normpath(directory / filename))
        if directory not in path.parents:
            raise self._wrong(f"input_data_file '{filename}' of input '{name}' is outside {directory}")
        wanted_bytes = count * datatype.itemsize
        inside = os.path.join(WARMUP_DIRECTORY, os.path.normpath(filename))
        try:
            if not datatype.itemsize:
                data = read_beneath(self.model_directory, inside, MOST_STRING_BYTES)
                self._spend(name, (count,), len(data))
                self._check_strings(name, data, count, path)
                return data
            data = read_start_beneath(self.model_directory, inside, wanted_bytes)
        except OSError as error:
            raise self._wrong(f"cannot read {path}, the data of input '{name}': {error.strerror}") from None
        if len(data) < wanted_bytes:
            raise self._wrong(
                f"warmup setting expects {wanted_bytes} bytes, but the data provided from {filename}only has "
                f"{len(data)} bytes. The file is {path}"
            )
        return data

    def _check_strings(self, name: str, data: bytes, count: int, path: Path) -> None:
        try:
            found = len(decode_elements(data))
        except BytesTensorError as error:
            raise self._wrong(f"{path}, the data of input '{name}', is no serialised BYTES tensor: {error}") from None
        if found != count:
            raise self._wrong(f"{path}, the data of input '{name}', has {found} strings, but its dims require {count}")

    def _wrong(self, text: str) -> ModelConfigError:
        where = f"model_warmup sample '{self.sample_name}' of model '{self.config.name}', {self.config.source}"
        return ModelConfigError(f"{text} ({where})", ErrorCode.INVALID_ARG)


def _names(names: Mapping[str, Any] | list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _fits(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(dims) == len(expected) and all(want in (-1, dim) for want, dim in zip(expected, dims, strict=True))


def _random(datatype: DataType, count: int) -> bytes:
    """Numbers from 0 to 1; whole ones from 0 to 127; empty strings."""
    generator = np.random.default_rng()
    if datatype.name == "BYTES":
        return bytes(count * LENGTH_BYTES)
    if datatype.name == "BOOL":
        return generator.integers(2, size=count, dtype=np.uint8).tobytes()
    if datatype.numpy is None:  # BF16: the upper half of an FP32
        return (generator.random(count, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes()
    if datatype.numpy.kind == "f":
        return generator.random(count).astype(datatype.numpy).tobytes()
    return generator.integers(_RANDOM_BELOW, size=count).astype(datatype.numpy).tobytes()
