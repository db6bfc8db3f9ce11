"""Traffic as it comes: small requests that differ from one to the next, beside requests that are all alike, over HTTP
and gRPC.

Each row is a set of requests that are sent in turns, more of them than a server remembers. What a row costs is compared
with requests that are alike in all.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from tests.bench import bodies, repositories, servers
from tests.bench.bodies import Workload
from tests.bench.goals import Goal
from tests.bench.grpc_workloads import UNARY, GrpcWorkload, check
from tests.bench.loadgen import GrpcCall, Load, LoadResult
from tests.bench.plan import Plan
from tests.bench.results import Results
from tests.bench.turns import LoadSample, Step, take_turns

REQUESTS = 4096
"""Of one row."""

ALIKE = "all alike"
HEAD_VERSUS_ALIKE = {"HTTP": 1.15, "gRPC": 1.2}
"""If only fields of the head differ that no model sees."""
BODY_VERSUS_ALIKE = 1.3

_MOST_ROWS = 16


@dataclass(frozen=True)
class _Request:
    """What one request of a row says."""

    model: str = repositories.MIXED
    rows: int = 1
    inputs: tuple[str, ...] = ("INPUT0", "INPUT1")
    outputs: tuple[str, ...] = ()
    id: str = ""
    flags: tuple[tuple[str, int | bool], ...] = ()
    trace: str = ""
    words: tuple[bytes, ...] = ()


def _alike(_number: int, _chance: Random) -> _Request:
    return _Request()


def _ids(number: int, _chance: Random) -> _Request:
    return _Request(id=f"{number:016d}")


def _traces(number: int, chance: Random) -> _Request:
    return _Request(trace=f"00-{chance.getrandbits(128):032x}-{number + 1:016x}-01")


def _rows(_number: int, chance: Random) -> _Request:
    return _Request(rows=chance.randint(1, _MOST_ROWS))


def _optional(_number: int, chance: Random) -> _Request:
    return _Request(inputs=chance.choice((("INPUT0",), ("INPUT0", "INPUT1"))))


def _outputs(_number: int, chance: Random) -> _Request:
    return _Request(outputs=chance.choice((("OUTPUT0",), ("OUTPUT1",), ("OUTPUT0", "OUTPUT1"))))


def _strings(_number: int, chance: Random) -> _Request:
    words = tuple(b"w" * chance.randint(0, 12) for _ in range(8))
    return _Request(repositories.MIXED_STRINGS, words=words)


def _sequences(number: int, _chance: Random) -> _Request:
    flags = (("sequence_id", number + 1), ("sequence_start", True), ("sequence_end", True))
    return _Request(repositories.MIXED_SEQUENCES, flags=flags)


_ROWS = {
    ALIKE: _alike,
    "ids": _ids,
    "a traceparent": _traces,
    f"1 to {_MOST_ROWS} rows": _rows,
    "optional inputs": _optional,
    "requested outputs": _outputs,
    "8 strings": _strings,
    "sequence flags": _sequences,
}


def workloads(count: int = REQUESTS) -> Iterator[Workload | GrpcWorkload]:
    """All rows, over HTTP and over gRPC."""
    for name, make in _ROWS.items():
        chance = Random(name)
        requests = [make(number, chance) for number in range(1 if name == ALIKE else count)]
        first = _http(_named(name, "HTTP"), requests[0])
        yield Workload(**{**vars(first), "in_turns": tuple(_http("", each).request for each in requests)})
        traced = bool(requests[0].trace)
        call = GrpcCall(UNARY, traced=traced)
        messages = tuple(_message(each) for each in requests[: 1 if traced else None])
        expected = {} if requests[0].words else first.expected
        yield GrpcWorkload(_named(name, "gRPC"), messages[0], call, expected, first.tensor_bytes, messages)


def _named(row: str, protocol: str) -> str:
    return f"{protocol}, {row}"


def _tensors(request: _Request) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    for place, name in enumerate(request.inputs):
        if request.words:
            found[name] = np.array([request.words[4 * place : 4 * place + 4]], np.object_)
        else:
            found[name] = np.full((request.rows, 4), place + 1.5, np.float32)
    return found


def _raw(data: npt.NDArray[Any]) -> bytes:
    if data.dtype != np.object_:
        return data.tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in data.ravel())


def _http(name: str, request: _Request) -> Workload:
    tensors = _tensors(request)
    raw = {name: _raw(data) for name, data in tensors.items()}
    document: dict[str, Any] = {"id": request.id} if request.id else {}
    document["inputs"] = [
        {
            "name": name,
            "shape": list(data.shape),
            "datatype": "BYTES" if request.words else "FP32",
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, data in tensors.items()
    ]
    if request.outputs:
        document["outputs"] = [{"name": each, "parameters": {"binary_data": True}} for each in request.outputs]
    else:
        document["parameters"] = {"binary_data_output": True}
    if request.flags:
        document["parameters"] = {**document.get("parameters", {}), **dict(request.flags)}
    text = json.dumps(document, separators=(",", ":")).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(text))}
    if request.trace:
        headers["traceparent"] = request.trace
    body = b"".join([text, *raw.values()])
    first = tensors["INPUT0"]
    expected = {each: first.reshape(-1) for each in request.outputs or ("OUTPUT0", "OUTPUT1")}
    expected = {each: data.reshape(first.shape) for each, data in expected.items()}
    path = f"/v2/models/{request.model}/infer"
    return Workload(name, path, headers, body, expected, sum(map(len, raw.values())))


def _message(request: _Request) -> bytes:
    made = service_pb2.ModelInferRequest(model_name=request.model, id=request.id)
    for name, value in request.flags:
        setattr(made.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    for name, data in _tensors(request).items():
        made.inputs.add(name=name, datatype="BYTES" if request.words else "FP32", shape=data.shape)
        made.raw_input_contents.append(_raw(data))
    for name in request.outputs:
        made.outputs.add(name=name)
    return bytes(made.SerializeToString())


def measure(launchers: Sequence[servers.Launcher], plan: Plan, scratch: Path) -> list[LoadSample]:
    """Send each row to every server, with the connections by which load is judged."""
    repository = scratch / "models"
    repositories.write_mixed(repository)
    load = Load(plan.busy_connections, plan.duration_s, plan.warm_up_s)
    steps = [Step(workload, load, plan.rounds) for workload in workloads()]
    with ExitStack() as stack:
        running = [stack.enter_context(launcher.start_with_grpc(repository)) for launcher in launchers]
        for server in running:
            for step in steps:
                if isinstance(step.workload, GrpcWorkload):
                    assert server.grpc_port is not None
                    check(server.grpc_port, step.workload)
                else:
                    bodies.check(server.port, step.workload)
        return take_turns(running, steps, scratch)


def goals(results: Results) -> list[Goal]:
    """What each row costs beside requests that are all alike; without samples nothing."""
    found = []
    for protocol, of_heads in HEAD_VERSUS_ALIKE.items():
        alike = _cpu(results, _named(ALIKE, protocol))
        for row in _ROWS:
            own = _cpu(results, _named(row, protocol))
            if row != ALIKE:
                ratios = [own[round_] / alike[round_] for round_ in own if round_ in alike]
                limit = of_heads if row == "a traceparent" else BODY_VERSUS_ALIKE
                name = f"{_named(row, protocol)}: CPU of host + stub against requests that are all alike"
                found.append(Goal(name, ratios, limit, at_least=False))
    return found


def _cpu(results: Results, workload: str) -> dict[int, float]:
    def both(result: LoadResult) -> float:
        return result.host_cpu_us + result.stub_cpu_us

    return {
        sample.round: both(sample.result)
        for sample in results.varied
        if (sample.server, sample.workload) == (servers.PYBACKEND, workload)
    }
