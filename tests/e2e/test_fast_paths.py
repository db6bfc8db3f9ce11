"""A server that remembers recurring requests, and one that does not, cannot be told apart: answers, counts, logs and
traces.

Both get the same bytes on the same connections: requests changed in every field, in pieces and behind each other,
between loads, unloads and changes of settings. ``make fuzz`` plays other games, and as many as one likes.
"""

import json
import re
import socket
import struct
from collections import Counter
from contextlib import ExitStack
from typing import Any

import hpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.support import http2
from tests.support.fuzzing import examples
from tests.support.grpc_calls import INFER, SERVER_LIVE, STREAM_INFER, framed
from tests.support.repositories import tensors, write_model
from tests.support.server import DEADLINE_S, ServerProcess, serving

KEY = "of-the-whole-team"
LIMIT_BYTES = 20_000

CONFIG = f"""
backend: "python"
input [ {tensors(A=("TYPE_FP32", [-1]), B=("TYPE_INT32", [2]))} ]
output [ {tensors(C=("TYPE_FP32", [-1]), D=("TYPE_INT32", [2]))} ]
instance_group {{ kind: KIND_CPU }}
parameters {{ key: "number" value {{ string_value: "1" }} }}
version_policy {{ all {{}} }}
"""

TEXT_CONFIG = f"""
backend: "python"
input [ {tensors(A=("TYPE_STRING", [-1]))} ]
output [ {tensors(C=("TYPE_STRING", [-1]))} ]
instance_group {{ kind: KIND_CPU }}
"""

SEQUENCE_CONFIG = f"""
backend: "python"
input [ {tensors(A=("TYPE_FP32", [-1]))} ]
output [ {tensors(C=("TYPE_STRING", [3]))} ]
instance_group {{ kind: KIND_CPU }}
sequence_batching {{ max_sequence_idle_microseconds: 600000000 oldest {{ max_candidate_sequences: 16 }} }}
"""

ADDING = """
    import json

    class TritonPythonModel:
        def initialize(self, args):
            self.added = NUMBER + int(json.loads(args["model_config"])["parameters"]["number"]["string_value"])

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            first, second = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in "AB")
            if first.size and first[0] < 0:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
            outputs = [pb_utils.Tensor("C", first + np.float32(self.added)), pb_utils.Tensor("D", second)]
            parameters = json.loads(request.parameters() or "{}")
            return pb_utils.InferenceResponse(outputs, parameters=parameters)
"""

ECHO = """
    class TritonPythonModel:
        def execute(self, requests):
            found = [pb_utils.get_input_tensor_by_name(request, "A").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("C", each)]) for each in found]
"""


FOLLOWING = """
    import collections

    class TritonPythonModel:
        def initialize(self, args):
            self.sums = collections.Counter()

        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            number, flags = request.correlation_id(), request.flags()
            if flags & 1:
                self.sums[number] = 0
            self.sums[number] += float(pb_utils.get_input_tensor_by_name(request, "A").as_numpy().sum())
            said = [repr(number).encode(), str(flags).encode(), str(self.sums[number]).encode()]
            return pb_utils.InferenceResponse([pb_utils.Tensor("C", np.array(said, np.object_))])
"""


class Peer:
    """One connection of HTTP to one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        self._received = b""

    def answers(self, pieces: list[bytes], count: int) -> list[bytes]:
        """The whole answers to so many requests, or those before the server has closed the connection."""
        found: list[bytes] = []
        try:
            for piece in pieces:
                self.socket.sendall(piece)
            while len(found) < count:
                found.append(self._answer())
        except (EOFError, ConnectionError):
            found.append(b"closed")
        return found

    def _answer(self) -> bytes:
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head = self._received.partition(b"\r\n\r\n")[0]
        end = len(head) + 4
        length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
        if length:
            end += int(length[1])
        else:
            assert b"\r\ntransfer-encoding: chunked" in head, head
            size = 1
            while size:
                while b"\r\n" not in self._received[end:]:
                    self._receive()
                line = self._received[end:].partition(b"\r\n")[0]
                size = int(line, 16)
                end += len(line) + 2 + size + 2
                self._receive_until(end)
        self._receive_until(end)
        whole, self._received = self._received[:end], self._received[end:]
        return whole

    def _receive_until(self, end: int) -> None:
        while len(self._received) < end:
            self._receive()

    def _receive(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError
        self._received += data


class GrpcPeer:
    """One connection of gRPC to one server. The bytes that it sends depend on nothing that it receives."""

    def __init__(self, server: ServerProcess) -> None:
        host, port = server.grpc_url.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
        self.socket.sendall(http2.PREFACE + http2.settings() + http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._next_stream = 1
        self._received = b""
        self.is_closed = False

    def call(self, fields: dict[str, str], messages: list[bytes], form: str, own: str | None = None) -> list[Any]:
        """All frames of the answer to a call, but those about windows. It may have fields of its ``own``, in one of
        several forms."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        block = self._encoder.encode(list(fields.items()))
        if own is not None:
            values = [
                ("x-request-id", f"{stream:032x}"),
                ("traceparent", f"00-{stream:032x}-{stream:016x}-01"),
                ("tracestate", f"v={stream}"),
                ("grpc-timeout", f"{1000 + stream}S"),
                ("cookie", f"s={stream}"),
                ("x-number", str(stream % 2)),
            ]
            texts = [(*field, own == "outside the table") for field in values[: 1 + stream % len(values)]]
            block += self._encoder.encode(texts, huffman=own != "plain text")
        frames = [http2.frame(http2.HEADERS, http2.END_HEADERS, stream, block)]
        if form == "window":
            frames.append(http2.frame(http2.WINDOW_UPDATE, 0, stream, http2.u32(5)))
        for number, message in enumerate(messages):
            cut = len(message) // 2 if form == "parted" else 0
            ended = http2.END_STREAM if number == len(messages) - 1 else 0
            if cut:
                frames.append(http2.frame(http2.DATA, 0, stream, message[:cut]))
            frames.append(http2.frame(http2.DATA, ended, stream, message[cut:]))
        if form == "window":
            frames.append(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(len(messages[0]) or 1)))
        try:
            if form == "apart":
                for frame in frames:
                    self.socket.sendall(frame)
            else:
                self.socket.sendall(b"".join(frames))
            return self._answer(stream)
        except (EOFError, ConnectionError):
            self.is_closed = True
            return ["closed"]

    def _answer(self, stream: int) -> list[Any]:
        body, found = b"", []
        while True:
            frame = self._frame()
            if frame.kind == http2.HEADERS:
                found.append(self._decoder.decode(frame.payload))
            elif frame.kind == http2.DATA:
                body += frame.payload
                self.socket.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 0, http2.u32(len(frame.payload) or 1)))
            elif frame.kind == http2.GOAWAY:
                found.append(frame.payload)
            if frame.stream_id == stream and (frame.kind == http2.RST_STREAM or self._ends(frame)):
                return [*found, body, frame.kind]

    @staticmethod
    def _ends(frame: http2.Frame) -> bool:
        return frame.kind in {http2.HEADERS, http2.DATA} and bool(frame.flags & http2.END_STREAM)

    def _frame(self) -> http2.Frame:
        while len(self._received) < 9 or len(self._received) < 9 + int.from_bytes(self._received[:3], "big"):
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._received += data
        end = 9 + int.from_bytes(self._received[:3], "big")
        (frame,) = http2.frames(self._received[:end])
        self._received = self._received[end:]
        return frame


class Game:
    """Two servers, and connections to both."""

    def __init__(self, servers: tuple[ServerProcess, ServerProcess]) -> None:
        self.servers = servers
        self.open = ExitStack()
        self._http: dict[int, tuple[Peer, ...]] = {}
        self._grpc: dict[int, tuple[GrpcPeer, ...]] = {}

    def _connect(self, kind: type[Any]) -> tuple[Any, ...]:
        peers = tuple(map(kind, self.servers))
        for peer in peers:
            self.open.enter_context(peer.socket)
        return peers

    def http(self, number: int, pieces: list[bytes], count: int) -> list[bytes]:
        """Send on one of the connections; returns the answers, which are the same."""
        peers = self._http.get(number) or self._connect(Peer)
        first, second = (peer.answers(pieces, count) for peer in peers)
        assert first == second
        if first[-1] == b"closed" or b"\r\nconnection: close" in first[-1]:
            self._http.pop(number, None)
        else:
            self._http[number] = peers
        return first

    def ask(self, path: str, document: object) -> None:
        """Change something in both servers, on connections of their own; only the names of files may differ."""
        replies = [server.request("POST", path, json.dumps(document), {"x-api-key": KEY}) for server in self.servers]
        assert replies[0].status == replies[1].status

    def grpc(self, number: int, fields: dict[str, str], messages: list[bytes], form: str, own: str | None) -> None:
        """Call on one of the connections: the answers are the same."""
        peers = self._grpc.setdefault(number, ()) or self._connect(GrpcPeer)
        first, second = (peer.call(fields, messages, form, own) for peer in peers)
        assert first == second
        self._grpc[number] = () if peers[0].is_closed else peers

    def counts(self) -> tuple[dict[str, float], ...]:
        """All that the servers count but times and sizes."""
        return tuple(map(counts_of, self.servers))


def counts_of(server: ServerProcess) -> dict[str, float]:
    text = server.request("GET", "/metrics", headers={"x-api-key": KEY}, port=server.metrics_port).body.decode()
    found = {}
    for line in text.splitlines():
        if re.match(r"\w*(request_success|request_failure|inference_count|exec_count|refus|answers|responses)", line):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    assert found, text
    return found


NUMBERS = st.sampled_from([0, 1, 2.5, 7, 1e30, -1])
IDS = st.sampled_from(["ab", "c%d", "", "éa", 'x"y', "i" * 130])
SIZES = st.sampled_from([1, 2, 37, 1100])
PARAMETERS = [{"x": 1}, {"x": "y"}, {"priority": 1}, {"sequence_id": 5}, {"x": [1]}]
OUTPUTS = [
    [{"name": "C"}],
    [{"name": "D"}, {"name": "C", "parameters": {"binary_data": True}}],
    [{"name": "C", "parameters": {"classification": 1}}],
    [{"name": "nothing"}],
]
HEADERS = [
    ("x-number", "1"),
    ("Origin", "http://x"),
    ("User-Agent", "a\tb"),
    ("Cookie", "\x7f"),
    ("b3 ", "0"),
    ("Upgrade", "h2c"),
    ("Accept-Encoding", "gzip"),
    ("traceparent", f"00-{'1' * 32}-{'2' * 16}-01"),
    ("Connection", "close"),
    ("Expect", "nothing"),
    ("X-API-Key", "again"),
]
OTHERS = st.one_of(
    st.tuples(st.just("parameters"), st.sampled_from(PARAMETERS)),
    st.tuples(st.just("outputs"), st.sampled_from(OUTPUTS)),
    st.tuples(st.just("header"), st.sampled_from(HEADERS)),
    st.tuples(st.just("version"), st.sampled_from(["1", "2", "9"])),
    st.tuples(st.just("key"), st.sampled_from(["wrong", None])),
    st.tuples(st.just("model"), st.sampled_from(["none", "text"])),
    st.tuples(st.just("datatype"), st.sampled_from(["INT32", "FP99"])),
    st.tuples(st.just("second"), st.sampled_from([1, 3])),
    st.tuples(
        st.just("bytes"),
        st.tuples(st.floats(0, 0.999), st.integers(0, 2), st.sampled_from([b"", b"0", b"}", b"\xff", b',"', b" "])),
    ),
)
DEVIATIONS = st.tuples(st.integers(0, 4), OTHERS).map(lambda drawn: drawn[1] if drawn[0] == 4 else ())
"""Most requests are like the one before; a deviation is the name of something and its other value."""
REPEATED = st.lists(st.tuples(NUMBERS, IDS | st.none(), DEVIATIONS), min_size=4, max_size=8)


MODELS = {"strings": "text", "sequence": "follows"}
"""By the form of a request."""


def changed(data: bytes, deviation: tuple[Any, ...]) -> bytes:
    if deviation[:1] != ("bytes",):
        return data
    where, count, other = deviation[1]
    at = int(where * len(data))
    return data[:at] + other + data[at + count :]


SEQUENCES = [5, 7, "5", "a b", 2**63, 0, "é", 10**17]


def of_sequence(number: float, request_id: str | None) -> dict[str, int | str | bool]:
    """The parameters of a request of a sequence: one of few, with any flags."""
    found: dict[str, int | str | bool] = {"sequence_id": SEQUENCES[int(number) % len(SEQUENCES)]}
    if request_id != "":
        found |= {"sequence_start": request_id != "ab", "sequence_end": request_id is None}
    return found


def strings(size: int, number: float, second: int) -> bytes:
    """A tensor of strings of several lengths; with another ``second`` than 2, its bytes do not fit its shape."""
    lengths = [int(abs(number) % 97 + place) % 7 for place in range(size)]
    whole = b"".join(struct.pack("<I", each) + b"s" * each for each in lengths)
    return {1: whole[:-1], 2: whole, 3: whole + bytes(4)}[second]


def http_request(form: str, size: int, number: float, request_id: str | None, deviation: tuple[Any, ...]) -> bytes:
    """A request whose tensors are binary or text."""
    other = {deviation[0]: deviation[1]} if deviation else {}
    model, second = other.get("model", MODELS.get(form, "m")), other.get("second", 2)
    document: dict[str, Any] = {} if request_id is None else {"id": request_id}
    raw = b""
    if model == "text":
        first = {"name": "A", "shape": [size], "datatype": "BYTES"}
        document["inputs"] = [first]
        if form == "strings":
            raw = strings(size, number, second)
            first["parameters"] = {"binary_data_size": len(raw)}
            document["parameters"] = {"binary_data_output": True}
        else:
            first["data"] = ["é"] * size
    elif model == "follows":
        document["inputs"] = [{"name": "A", "shape": [size], "datatype": other.get("datatype", "FP32")}]
        document["parameters"] = of_sequence(number, request_id)
        if second == 2:
            raw = struct.pack("<f", number) * size
            document["inputs"][0]["parameters"] = {"binary_data_size": 4 * size}
            document["parameters"]["binary_data_output"] = True
        else:
            document["inputs"][0]["data"] = [number] * size
    else:
        first = {"name": "A", "shape": [size], "datatype": other.get("datatype", "FP32")}
        last = {"name": "B", "shape": [2], "datatype": "INT32"}
        document["inputs"] = [first, last]
        if form == "binary":
            raw = struct.pack("<f", number) * size + bytes(4 * second)
            first["parameters"] = {"binary_data_size": 4 * size}
            last["parameters"] = {"binary_data_size": 4 * second}
            document["parameters"] = {"binary_data_output": True}
        else:
            first["data"], last["data"] = [number] * size, [3] * second
    if "parameters" in other:
        document["parameters"] = {**document.get("parameters", {}), **other["parameters"]}
    if "outputs" in other:
        document["outputs"] = other["outputs"]
    text = json.dumps(document, separators=None if form == "spaced" else (",", ":")).encode()
    text = changed(text, deviation)
    version = f"/versions/{other['version']}" if "version" in other else ""
    lines = [f"POST /v2/models/{model}{version}/infer HTTP/1.1", "Host: x"]
    key = other.get("key", KEY)
    if key is not None:
        lines.append(f"x-api-key: {key}")
    if "header" in other:
        lines.append(": ".join(other["header"]))
    if raw:
        lines.append(f"Inference-Header-Content-Length: {len(text)}")
    lines += [f"Content-Length: {len(text) + len(raw)}", "", ""]
    return "\r\n".join(lines).encode() + text + raw


def grpc_message(form: str, size: int, number: float, request_id: str | None, deviation: tuple[Any, ...]) -> bytes:
    """A message whose tensors are raw or lists of numbers."""
    other = {deviation[0]: deviation[1]} if deviation else {}
    model = other.get("model", MODELS.get(form, "m"))
    made = service_pb2.ModelInferRequest(model_name=model, model_version=other.get("version", ""), id=request_id or "")
    own = of_sequence(number, request_id) if model == "follows" else {}
    for name, value in {**own, **other.get("parameters", {})}.items():
        field = {int: "int64_param", str: "string_param", bool: "bool_param"}.get(type(value))
        if field is not None and value != 2**63:
            setattr(made.parameters[name], field, value)
    made.outputs.extend(made.InferRequestedOutputTensor(name=each["name"]) for each in other.get("outputs", ()))
    first = made.inputs.add(name="A", datatype=other.get("datatype", "FP32"), shape=[size])
    if model == "text":
        first.datatype = "BYTES"
        made.raw_input_contents.append(strings(size, number, other.get("second", 2)))
    elif model == "follows":
        made.raw_input_contents.append(struct.pack("<f", number) * size)
    else:
        last = made.inputs.add(name="B", datatype="INT32", shape=[2])
        if form == "text":
            first.contents.fp32_contents.extend([number] * size)
            last.contents.int_contents.extend([3] * other.get("second", 2))
        else:
            made.raw_input_contents.extend([struct.pack("<f", number) * size, bytes(4 * other.get("second", 2))])
    return framed(changed(made.SerializeToString(), deviation))


def grpc_fields(path: str, deviation: tuple[Any, ...]) -> dict[str, str]:
    other = {deviation[0]: deviation[1]} if deviation else {}
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    key = other.get("key", KEY)
    if key is not None:
        fields["x-api-key"] = key
    if "header" in other:
        name, value = other["header"]
        fields |= {
            "Connection": {"grpc-timeout": "100S"},
            "Accept-Encoding": {"grpc-encoding": "br"},
            "Expect": {":method": "GET"},
        }.get(name, {name.lower(): value})
    return fields


HTTP_ACTIONS = st.tuples(
    st.just("http"),
    st.integers(0, 1),
    st.sampled_from(["binary", "text", "spaced", "strings", "sequence"]),
    SIZES,
    REPEATED,
    st.sampled_from(["one by one", "one by one", "one by one", "behind each other", "cut"]),
    st.floats(0, 1),
)
GRPC_ACTIONS = st.tuples(
    st.just("grpc"),
    st.integers(0, 1),
    st.sampled_from(["raw", "raw", "text", "strings", "sequence"]),
    SIZES,
    REPEATED,
    st.sampled_from([INFER, INFER, INFER, STREAM_INFER, SERVER_LIVE]),
    st.lists(st.sampled_from(["whole", "whole", "window", "window", "apart", "parted"]), min_size=8, max_size=8),
    st.sampled_from([None, "in the table", "plain text", "outside the table"]),
)

USUAL: list[tuple[str, Any]] = [
    ("/v2/trace/setting", {"trace_level": ["OFF"], "trace_count": "-1"}),
    ("/v2/models/m/trace/setting", {"trace_level": None, "trace_rate": None}),
    ("/v2/logging", {"log_verbose_level": 0}),
    ("/v2/repository/models/m/load", {}),
]
SETTINGS: Any = st.sampled_from(
    [
        *USUAL,
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}),
        ("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "2", "trace_count": "3"}),
        ("/v2/models/m/trace/setting", {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}),
        ("/v2/logging", {"log_verbose_level": 1}),
        ("/v2/repository/models/m/unload", {}),
        ("/v2/repository/models/m/load", {"parameters": {"config": "other"}}),
    ]
)

ACTIONS = st.lists(
    st.one_of(
        HTTP_ACTIONS,
        GRPC_ACTIONS,
        HTTP_ACTIONS,
        GRPC_ACTIONS,
        HTTP_ACTIONS,
        GRPC_ACTIONS,
        SETTINGS.map(lambda each: ("set", *each)),
    ),
    min_size=8,
    max_size=20,
)


def other_config() -> str:
    """The configuration in which only version 1 answers, and it adds another number."""
    return json.dumps(
        {
            "backend": "python",
            "input": [
                {"name": "A", "data_type": "TYPE_FP32", "dims": [-1]},
                {"name": "B", "data_type": "TYPE_INT32", "dims": [2]},
            ],
            "output": [
                {"name": "C", "data_type": "TYPE_FP32", "dims": [-1]},
                {"name": "D", "data_type": "TYPE_INT32", "dims": [2]},
            ],
            "instance_group": [{"kind": "KIND_CPU"}],
            "parameters": {"number": {"string_value": "50"}},
            "version_policy": {"specific": {"versions": [1]}},
        }
    )


def play(game: Game, actions: list[tuple[Any, ...]]) -> None:
    for kind, *details in actions:
        if kind == "set":
            path, document = details
            if document.get("parameters"):
                document = {"parameters": {"config": other_config()}}
            game.ask(path, document)
        elif kind == "http":
            connection, form, size, repeated, together, where = details
            requests = [http_request(form, size, *each) for each in repeated]
            if together == "one by one":
                for request in requests:
                    game.http(connection, [request], 1)
            else:
                data = b"".join(requests)
                cut = int(where * len(data)) if together == "cut" else 0
                game.http(connection, [piece for piece in (data[:cut], data[cut:]) if piece], len(requests))
        else:
            connection, form, size, repeated, path, frames, own = details
            messages = [grpc_message(form, size, *each) for each in repeated]
            if path == STREAM_INFER:
                game.grpc(connection, grpc_fields(path, repeated[0][2]), messages, frames[0], own)
                continue
            for message, (*_, deviation), way in zip(messages, repeated, frames, strict=False):
                game.grpc(connection, grpc_fields(path, deviation), [message], way, own)


def traces_of(directory: Any) -> Counter[str]:
    """The traces of a server: all but times and numbers."""
    found: Counter[str] = Counter()
    for file in directory.glob("trace*"):
        for record in json.loads(file.read_text() or "[]"):
            record.pop("id", None)
            record.pop("parent_id", None)
            record["timestamps"] = [each["name"] for each in record.get("timestamps", [])]
            found[json.dumps(record, sort_keys=True)] += 1
    return found


@pytest.mark.hypothesis
def test_servers_with_and_without_memory_cannot_be_told_apart(tmp_path):
    repository = tmp_path / "models"
    for version, number in ((1, 1), (2, 10)):
        write_model(repository, "m", ADDING.replace("NUMBER", str(number)), CONFIG, version=version)
    write_model(repository, "text", ECHO, TEXT_CONFIG)
    write_model(repository, "follows", FOLLOWING, SEQUENCE_CONFIG)
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    directories = [tmp_path / "with", tmp_path / "without"]
    common = (
        "--model-control-mode=explicit",
        "--load-model=m",
        "--load-model=text",
        "--load-model=follows",
        f"--api-key-file={keys}",
        f"--http-max-input-size={LIMIT_BYTES}",
    )
    with ExitStack() as stack:
        servers = []
        for directory, more in zip(directories, [(), ("--no-fast-paths",)], strict=True):
            directory.mkdir()
            flags = (*common, *more, f"--trace-config=triton,file={directory / 'trace'}", "--trace-config=rate=1")
            servers.append(stack.enter_context(serving(repository, flags=flags, ready=False)))
        for server in servers:
            server.wait_for(r"m .*READY")

        @given(ACTIONS)
        @settings(examples(10), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def plays(actions: list[tuple[Any, ...]]) -> None:
            game = Game((servers[0], servers[1]))
            with game.open:
                for path, document in USUAL:
                    game.ask(path, document)
                play(game, actions)
            first, second = game.counts()
            assert first == second

        plays()
        logs = [re.findall(r'"((?:HTTP|gRPC) request: .*)"', server.output) for server in servers]
        assert logs[0] == logs[1]
    first, second = map(traces_of, directories)
    assert first == second
