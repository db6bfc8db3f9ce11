"""A configuration's ``model_warmup``: the samples that every instance runs before it takes requests, with their bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.schema import ModelConfig, Scheduling
from pybackend.modelconfig.signature import ModelSignature
from pybackend_wire.bytes_tensor import LENGTH_BYTES, BytesTensorError, decode_elements
from pybackend_wire.dtypes import BY_CONFIG_NAME, DATATYPES, DataType

WARMUP_DIRECTORY = "warmup"
"""Where in a model's directory the files of samples lie."""

_RANDOM_BELOW = 128
"""Random whole numbers fit every datatype, and the vocabularies and tables that models look them up in."""


@dataclass(frozen=True, slots=True)
class WarmupTensor:
    """One input of a sample.

    Attributes:
        name: the input's name.
        datatype: wire name, e.g. ``FP32``.
        shape: as the model gets it, with a batch dimension of 1 if it batches.
        data: the bytes in wire form.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One sample.

    Attributes:
        name: as configured.
        batch_size: how many requests of one item each execution gets.
        count: how many executions.
        inputs: of each request.
    """

    name: str
    batch_size: int
    count: int
    inputs: tuple[WarmupTensor, ...]


def warmup_samples(config: ModelConfig, signature: ModelSignature, model_directory: Path) -> tuple[WarmupSample, ...]:
    """The samples to run, in configured order, without those of batch size 0.

    Args:
        config: finished.
        signature: of the same model.
        model_directory: holds the directory of the samples' files. They are read here, so this may take a while.

    Raises:
        ModelConfigError: a sample does not fit the model, or its file cannot be read.
    """
    samples = []
    for sample in config.document["model_warmup"]:
        inputs = _SampleReader(config, signature, model_directory, sample["name"]).inputs(sample["inputs"])
        if sample["batch_size"] > 0:
            samples.append(WarmupSample(sample["name"], sample["batch_size"], sample["count"] or 1, inputs))
    return tuple(samples)


@dataclass(frozen=True, slots=True)
class _SampleReader:
    config: ModelConfig
    signature: ModelSignature
    model_directory: Path
    sample_name: str

    def inputs(self, inputs: Mapping[str, Mapping[str, Any]]) -> tuple[WarmupTensor, ...]:
        """All inputs, in the model's order, checked."""
        known = self.signature.inputs
        # Sequence batchers add inputs of their own, which a sample has to bring along.
        adds_inputs = self.config.scheduling is Scheduling.SEQUENCE_BATCHING
        for name in inputs:
            if name not in known and not adds_inputs:
                raise self._wrong(f"unexpected input '{name}'. The model's inputs are {_names(known)}")
        missing = [name for name, tensor in known.items() if not tensor.optional and name not in inputs]
        if missing:
            raise self._wrong(f"there is no input {_names(missing)}, which the model needs")
        ordered = [*(name for name in known if name in inputs), *(name for name in inputs if name not in known)]
        return tuple(self._tensor(name, inputs[name]) for name in ordered)

    def _tensor(self, name: str, given: Mapping[str, Any]) -> WarmupTensor:
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
        data = self._data(name, datatype, prod(dims), given)
        if expected is not None:
            shape = tuple(self.signature.shape_for_model(expected, shape))
        return WarmupTensor(name, datatype.name, shape, data)

    def _data(self, name: str, datatype: DataType, count: int, given: Mapping[str, Any]) -> bytes:
        if given.get("input_data_file"):
            return self._file_data(name, datatype, count, given["input_data_file"])
        if given.get("random_data"):
            return _random(datatype, count)
        if given.get("zero_data"):
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
        try:
            data = path.read_bytes()
        except OSError as error:
            raise self._wrong(f"cannot read {path}, the data of input '{name}': {error.strerror}") from None
        if not datatype.itemsize:
            self._check_strings(name, data, count, path)
            return data
        wanted_bytes = count * datatype.itemsize
        if len(data) < wanted_bytes:
            raise self._wrong(
                f"warmup setting expects {wanted_bytes} bytes, but the data provided from {filename}only has "
                f"{len(data)} bytes. The file is {path}"
            )
        return data[:wanted_bytes]

    def _check_strings(self, name: str, data: bytes, count: int, path: Path) -> None:
        try:
            found = len(decode_elements(data))
        except BytesTensorError as error:
            raise self._wrong(f"{path}, the data of input '{name}', is no serialised BYTES tensor: {error}") from None
        if found != count:
            raise self._wrong(f"{path}, the data of input '{name}', has {found} strings, its dims say {count}")

    def _wrong(self, text: str) -> ModelConfigError:
        where = f"model_warmup sample '{self.sample_name}' of model '{self.config.name}', {self.config.source}"
        return ModelConfigError(f"{text} ({where})", ErrorCode.INVALID_ARG)


def _names(names: Mapping[str, Any] | list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _fits(dims: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(dims) == len(expected) and all(want in (-1, dim) for want, dim in zip(expected, dims, strict=True))


def _random(datatype: DataType, count: int) -> bytes:
    """Numbers from 0 to 1, or whole ones from 0 to 127; empty strings, for there is nothing to choose from."""
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
