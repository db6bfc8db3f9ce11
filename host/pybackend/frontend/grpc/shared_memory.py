"""The methods of the shared memory extension: clients register regions, and ask for and unregister them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pybackend.engine.engine import InferenceEngine
from pybackend.errors import InferenceError
from pybackend.frontend.grpc.frontend import PROTOCOL
from pybackend.schema.messages import message_class


def shared_memory_methods(engine: InferenceEngine) -> Mapping[str, Callable[[Any], Awaitable[Any]]]:
    """The methods by name: functions that make a response's message of a request's."""
    regions = engine.regions

    def system_status(request: Any) -> Any:
        answer = message_class("inference.SystemSharedMemoryStatusResponse")()
        for region in regions.status(request.name):
            status = answer.regions[region.name]
            status.name, status.key = region.name, region.key
            status.offset, status.byte_size = region.offset, region.nbytes
        return answer

    def system_register(request: Any) -> Any:
        regions.register(request.name, request.key, request.offset, request.byte_size)
        return message_class("inference.SystemSharedMemoryRegisterResponse")()

    def system_unregister(request: Any) -> Any:
        regions.unregister(request.name)
        return message_class("inference.SystemSharedMemoryUnregisterResponse")()

    def cuda_status(request: Any) -> Any:
        regions.check_cuda_status(request.name)
        return message_class("inference.CudaSharedMemoryStatusResponse")()

    def cuda_register(request: Any) -> Any:
        regions.refuse_cuda(request.name)

    def cuda_unregister(_request: Any) -> Any:
        regions.check_enabled()
        return message_class("inference.CudaSharedMemoryUnregisterResponse")()

    def counted(answer: Callable[[Any], Any]) -> Callable[[Any], Awaitable[Any]]:
        async def count(request: Any) -> Any:
            try:
                return answer(request)
            except InferenceError as error:
                engine.refusals.add_error(PROTOCOL, "", error)
                raise

        return count

    answers = {
        "SystemSharedMemoryStatus": system_status,
        "SystemSharedMemoryRegister": system_register,
        "SystemSharedMemoryUnregister": system_unregister,
        "CudaSharedMemoryStatus": cuda_status,
        "CudaSharedMemoryRegister": cuda_register,
        "CudaSharedMemoryUnregister": cuda_unregister,
    }
    return {name: counted(answer) for name, answer in answers.items()}
