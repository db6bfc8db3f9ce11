"""Requests and results as bound functions see them, and the model for which the calling thread runs one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from pybackend_bind.model_config import TritonModelConfig

RUNNING: ContextVar[TritonModelConfig] = ContextVar("pybackend_bound")
"""The model whose function runs: of a thread, and of the coroutines of an instance."""


class Request(MutableMapping[str, np.ndarray]):
    """One request, by the names of its inputs; optional inputs may be absent."""

    __slots__ = ("data", "parameters", "requested_output_names")

    def __init__(
        self,
        data: dict[str, np.ndarray],
        parameters: Mapping[str, Any] | None = None,
        requested_output_names: Sequence[str] = (),
    ) -> None:
        self.data = data
        self.parameters = parameters
        self.requested_output_names = requested_output_names

    def __getitem__(self, name: str) -> np.ndarray:
        return self.data[name]

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self.data[name] = array

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def keys(self) -> Any:
        """The names of the inputs."""
        return self.data.keys()

    def items(self) -> Any:
        """Names and arrays."""
        return self.data.items()

    def values(self) -> Any:
        """The arrays."""
        return self.data.values()

    def copy(self) -> Request:
        """The same arrays in another request."""
        return Request(dict(self.data), self.parameters, self.requested_output_names)

    def __repr__(self) -> str:
        return f"Request({self.data!r}, {self.parameters!r})"
