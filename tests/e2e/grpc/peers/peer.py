"""Stubs that protoc made of the published .proto files, and grpcio: nothing of Triton's client, nothing of the
server's.

    python peer.py ADDRESS FOLDER_OF_THE_STUBS

Prints one JSON document: what each kind of call brought.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import Any

import grpc

ADDRESS, STUBS = sys.argv[1:]
sys.path.insert(0, STUBS)

import grpc_service_pb2 as pb  # noqa: E402
import grpc_service_pb2_grpc as service  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # noqa: E402


def request(model: str, *values: float, raw: bool = False, **fields: Any) -> Any:
    made = pb.ModelInferRequest(model_name=model, **fields)
    tensor = made.inputs.add(name="IN", datatype="FP32", shape=[len(values)])
    if raw:
        made.raw_input_contents.append(struct.pack(f"<{len(values)}f", *values))
    else:
        tensor.contents.fp32_contents.extend(values)
    return made


def floats(response: Any) -> list[float]:
    return [value for data in response.raw_output_contents for (value,) in struct.iter_unpack("<f", data)]


def status(call: Any, *arguments: Any, **options: Any) -> tuple[int, str]:
    try:
        call(*arguments, **options)
    except grpc.RpcError as error:
        return error.code().value[0], error.details()
    return 0, ""


def streamed(stub: Any, *requests: Any, metadata: Any = ()) -> Any:
    found = []
    try:
        for answer in stub.ModelStreamInfer(iter(requests), metadata=metadata, timeout=60):
            response = answer.infer_response
            final = response.parameters["triton_final_response"].bool_param
            found.append(answer.error_message or [response.id, floats(response), final])
    except grpc.RpcError as error:
        found.append([error.code().value[0], error.details()])
    return found


def cancelled(stub: Any) -> int:
    call = stub.ModelInfer.future(request("patient", 1))
    call.cancel()
    try:
        call.result()
    except grpc.FutureCancelledError:
        return grpc.StatusCode.CANCELLED.value[0]
    return 0


def main() -> None:
    with grpc.insecure_channel(ADDRESS) as channel:
        stub = service.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="batched"), timeout=60)
        last = {"triton_enable_empty_final_response": pb.InferParameter(bool_param=True)}
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        (listed,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([asked]), timeout=60)
        large = range(100_000)
        seen = {
            "live": stub.ServerLive(pb.ServerLiveRequest(), timeout=60).live,
            "health": health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status,
            "services": [each.name for each in listed.list_services_response.service],
            "metadata": [[each.name, each.datatype, list(each.shape)] for each in metadata.inputs],
            "contents": floats(stub.ModelInfer(request("identity", 1, 2.5), timeout=60)),
            "raw": floats(stub.ModelInfer(request("identity", 1, 2.5, raw=True), timeout=60)),
            "id": stub.ModelInfer(request("identity", 1, id="ü"), timeout=60).id,
            "compressed": sum(
                floats(
                    stub.ModelInfer(
                        request("identity", *large, raw=True), timeout=60, compression=grpc.Compression.Gzip
                    )
                )
            ),
            "stream": streamed(
                stub,
                request("repeat", 2, id="a", parameters=last),
                request("nobody", 1),
                request("identity", 7, id="b"),
            ),
            "stream_with_metadata": streamed(stub, request("failing", 2), metadata=[("triton_grpc_error", "true")]),
            "unknown_model": status(stub.ModelInfer, request("nobody", 1), timeout=60),
            "model_error": status(stub.ModelInfer, request("failing", 2), timeout=60),
            "deadline": status(stub.ModelInfer, request("patient", 1), timeout=0.3)[0],
            "cancelled": cancelled(stub),
        }
    sys.stdout.write(json.dumps(seen))


main()
