"""The interface of a model's class, for type checkers and editors. Nothing needs it at run time."""

from typing import Awaitable, List, Optional, Protocol, TypedDict, Union

from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse

Responses = Optional[List[Optional[InferenceResponse]]]
"""The return value of ``execute``: one response per request, in the order of the requests."""


class InitializeArguments(TypedDict):
    """The argument of ``initialize``; every value is text.

    Attributes:
        model_config: the final configuration as JSON.
        model_instance_kind: ``CPU``, ``GPU`` or ``MODEL``.
        model_instance_name: e.g. ``add_sub_0_0``.
        model_instance_device_id: decimal, ``0``: the process sees the GPU of its instance alone.
        model_repository: the model's folder.
        model_version: decimal.
        model_name: the model's name.
    """

    model_config: str
    model_instance_kind: str
    model_instance_name: str
    model_instance_device_id: str
    model_repository: str
    model_version: str
    model_name: str


class PythonModel(Protocol):
    """``class TritonPythonModel`` in ``model.py``: any class that has ``execute`` and no constructor arguments.

    It may also have ``auto_complete_config(auto_complete_model_config: ModelConfig) -> ModelConfig`` (a static method),
    ``initialize(self, args: InitializeArguments) -> None``, ``finalize(self) -> None`` and ``is_ready(self) -> bool``.
    """

    def execute(self, requests: List[InferenceRequest]) -> "Union[Responses, Awaitable[Responses]]":
        """Answer a batch of requests."""
