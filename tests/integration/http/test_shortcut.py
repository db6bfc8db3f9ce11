"""Requests whose head and JSON part are known take a shortcut, and are answered exactly as all others are."""

import asyncio
import json
import struct
from contextlib import asynccontextmanager

import pytest

from pybackend.engine.engine import ModelRoute
from pybackend.frontend.flow import ClientMemory
from pybackend.frontend.http.app import make_app
from pybackend.frontend.http.guard import Cors
from pybackend.frontend.http.infer_frontend import InferFrontend
from pybackend.frontend.http.server import HttpServer
from pybackend.frontend.listening import bind
from pybackend.protocol.limits import BodyLimits
from pybackend.settings import CorsSettings
from tests.support.connection import binary_body, post
from tests.support.engine import engine_on
from tests.support.repositories import tensors, write_model

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
version_policy {{ all {{}} }}
"""

ADDING = """
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if array[0] < 0:
                    answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("negative")))
                else:
                    answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + np.float32({number}))]))
            return answers
"""


def adding(number):
    return ADDING.format(number=number)


def request(value, **extra):
    document = {
        **extra,
        "inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}],
        "parameters": {"binary_data_output": True},
    }
    body, headers = binary_body(document, struct.pack("<f", value))
    return post("/v2/models/m/infer", body, headers)


def text(*values, compact=True, **extra):
    document = {**extra, "inputs": [{"name": "IN", "shape": [len(values)], "datatype": "FP32", "data": values}]}
    return json.dumps(document, separators=(",", ":") if compact else None).encode()


class Client:
    """One connection that stays open."""

    def __init__(self, reader, writer):
        self._reader = reader
        self.writer = writer

    async def ask(self, value, **extra):
        """Status, document and the output's number."""
        self.writer.write(request(value, **extra))
        return await self.answer()

    async def ask_twice(self, body, number):
        """The whole answer to a body of JSON, which is the same if a head that comes once forces the ordinary way."""
        self.writer.write(post("/v2/models/m/infer", body))
        answer = await self.whole()
        self.writer.write(post("/v2/models/m/infer", body, {"Origin": number}))
        assert await self.whole() == answer
        return answer

    async def whole(self):
        """The bytes of an answer."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r")[0]
        return head + await self._reader.readexactly(int(length))

    async def answer(self):
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        body = await self._reader.readexactly(int(fields[b"content-length"]))
        json_bytes = int(fields.get(b"inference-header-content-length", len(body)))
        numbers = struct.unpack(f"<{(len(body) - json_bytes) // 4}f", body[json_bytes:])
        return int(head.split()[1]), json.loads(body[:json_bytes]), *numbers


@pytest.fixture
def shortcuts(monkeypatch):
    """How many requests have gone through a shortcut."""
    taken = []
    submit = ModelRoute.submit

    def counted(self, *args):
        pending = submit(self, *args)
        if pending is not None:
            taken.append(pending)
        return pending

    monkeypatch.setattr(ModelRoute, "submit", counted)
    return taken


@asynccontextmanager
async def serving(repository, startup_models=("m",), cors=None, **options):
    async with engine_on(repository, explicit=True, startup_models=startup_models, **options) as engine:
        limits = BodyLimits()
        frontend = InferFrontend(engine, limits, ClientMemory(1 << 30))
        server = HttpServer(make_app(frontend), frontend.client_memory, frontend, cors=cors)
        sock = bind("127.0.0.1", 0, "HTTP")
        await server.start(sock)
        client = Client(*await asyncio.open_connection(*sock.getsockname()))
        try:
            yield engine, client
        finally:
            client.writer.close()
            await server.stop(asyncio.get_running_loop().time() + 5)


def test_a_client_that_repeats_itself_follows_the_model_through_its_life(tmp_path, shortcuts):
    write_model(tmp_path, "m", adding(1), CONFIG)

    async def main():
        async with serving(tmp_path) as (engine, client):
            answers = [await client.ask(value) for value in range(6)]
            assert len(shortcuts) >= 3
            assert [answer[2] for answer in answers] == [1, 2, 3, 4, 5, 6]
            assert len({json.dumps(answer[1]) for answer in answers}) == 1
            # A higher version answers from now on, although the first one still serves.
            write_model(tmp_path, "m", adding(10), CONFIG, version=2)
            await engine.control.load("m")
            before = len(shortcuts)
            answers = [await client.ask(1) for _ in range(4)]
            assert {(answer[1]["model_version"], answer[2]) for answer in answers} == {("2", 11)}
            assert len(shortcuts) - before >= 3
            await engine.control.unload("m")
            for _ in range(3):
                status, document = await client.ask(1)
                assert status in {400, 404}
                assert document["error"].startswith("Request for unknown model: 'm' ")
            await engine.control.load("m")
            before = len(shortcuts)
            assert [(await client.ask(2))[2] for _ in range(4)] == [12] * 4
            assert len(shortcuts) - before >= 3

    asyncio.run(main())


ECHO = """
    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""


def test_strings_take_the_shortcut_whatever_their_lengths(tmp_path, shortcuts):
    write_model(tmp_path, "m", ECHO, CONFIG.replace("FP32", "STRING"))

    def strings(raw):
        tensor = {"name": "IN", "shape": [3], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}}
        body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, raw)
        return post("/v2/models/m/infer", body, headers)

    async def main():
        async with serving(tmp_path) as (_engine, client):
            for round_ in range(6):
                for size in (0, 3, 50, 9):
                    raw = b"".join(struct.pack("<I", each) + bytes(each) for each in (size, round_ % 2, 4))
                    client.writer.write(strings(raw))
                    answer = await client.whole()
                    assert answer.startswith(b"HTTP/1.1 200 ")
                    assert answer.endswith(raw)
            assert len(shortcuts) >= 8
            before = len(shortcuts)
            for wrong in (raw[:-1], raw + bytes(1), raw[:12], raw[:1] + b"\xff" + raw[2:]):
                for _ in range(3):
                    client.writer.write(strings(wrong))
                    answer = await client.whole()
                    assert answer.startswith(b"HTTP/1.1 400 ")
                    assert b"inference input 'IN' for model 'm'" in answer
            assert len(shortcuts) == before

    asyncio.run(main())


SEQUENCES = """
    class TritonPythonModel:
        def execute(self, requests):
            found = [np.array([each.correlation_id(), each.flags()], np.float32) for each in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in found]
"""


def test_requests_of_sequences_take_the_shortcut_whichever_they_name(tmp_path, shortcuts):
    write_model(tmp_path, "m", SEQUENCES, CONFIG.replace("version_policy { all {} }", "sequence_batching {}"))
    tensor = {"name": "IN", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}}

    async def main():
        async with serving(tmp_path) as (_engine, client):
            for sequence in range(1, 8):
                for start, end in ((True, False), (False, False), (False, True)):
                    flags = {"sequence_id": sequence, "sequence_start": start, "sequence_end": end}
                    parameters = {**flags, "binary_data_output": True}
                    body, headers = binary_body({"inputs": [tensor], "parameters": parameters}, bytes(4))
                    client.writer.write(post("/v2/models/m/infer", body, headers))
                    status, _, *numbers = await client.answer()
                    assert (status, numbers) == (200, [sequence, start + 2 * end])
            assert len(shortcuts) >= 15

    asyncio.run(main())


def test_the_shortcut_leads_to_the_same_answers(tmp_path, shortcuts):
    write_model(tmp_path, "m", adding(1), CONFIG)

    async def main():
        async with serving(tmp_path) as (_engine, client):
            for _ in range(4):
                await client.ask(1)
            ordinary = len(shortcuts)
            assert ordinary
            status, document = await client.ask(-1)
            assert (status, document["error"]) == (500, "negative")
            for name in ("a", "b", "c", "d"):
                assert (await client.ask(1, id=name))[1:] == (
                    {
                        "id": name,
                        "model_name": "m",
                        "model_version": "1",
                        "outputs": [
                            {"name": "OUT", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
                        ],
                    },
                    2,
                )
            assert len(shortcuts) >= ordinary + 2
            # Requests in pieces and several at once are no whole requests, and answered in order all the same.
            before = len(shortcuts)
            message = request(5)
            for cut in (1, 30, len(message) - 5, len(message) - 1):
                client.writer.write(message[:cut])
                await client.writer.drain()
                client.writer.write(message[cut:])
                assert (await client.answer())[2] == 6
            client.writer.write(request(7) + request(8) + request(9)[:20])
            assert [(await client.answer())[2] for _ in range(2)] == [8, 9]
            client.writer.write(request(9)[20:])
            assert (await client.answer())[2] == 10
            assert (await client.ask(3))[2] == 4
            assert len(shortcuts) > before

    asyncio.run(main())


def test_text_of_any_length_takes_the_shortcut_to_the_same_answers(tmp_path, shortcuts):
    write_model(tmp_path, "m", adding(1), CONFIG)

    async def main():
        async with serving(tmp_path) as (_engine, client):
            numbers = iter(range(1000))
            for compact in (True, False):
                for value in (1, 2.5, 100):
                    client.writer.write(post("/v2/models/m/infer", text(value, compact=compact)))
                    assert json.loads((await client.whole()).split(b"\r\n\r\n")[1])["outputs"][0]["data"] == [value + 1]
                before = len(shortcuts)
                for value in (0, 0.1, 123456.789, 1e-30, 3.4e38):
                    await client.ask_twice(text(value, compact=compact), next(numbers))
                assert len(shortcuts) == before + 5
                before = len(shortcuts)
                for value in (1e39, -1):  # one that FP32 does not hold, one that the model refuses
                    await client.ask_twice(text(value, compact=compact), next(numbers))
                assert len(shortcuts) == before + 1
            before = len(shortcuts)
            for name in "abcd":
                answer = await client.ask_twice(text(1, id=name), next(numbers))
                assert json.loads(answer.split(b"\r\n\r\n")[1])["id"] == name
            assert len(shortcuts) == before + 4
            for body in (
                text(1)[:-1],
                text(1)[1:],
                text(1).replace(b"[1]}", b"[1,2]}"),
                text(1).replace(b"FP32", b"FP64"),
            ):
                answer = await client.ask_twice(body, next(numbers))
                assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 500 "))
            assert len(shortcuts) == before + 4
            # Only a plain length tells where the text ends.
            body = text(1)
            expected = await client.ask_twice(body, next(numbers))
            before = len(shortcuts)
            padded = body + b" " * 40
            for length in (b"0%d" % len(body), b"%d " % len(body), b"%d" % (len(body) + 40)):
                client.writer.write(post("/v2/models/m/infer", padded, {"Content-Length": length.decode()})[:-40])
                if length.startswith(b"%d" % (len(body) + 40)):
                    client.writer.write(b" " * 40)
                assert await client.whole() == expected
            assert len(shortcuts) == before
            # Two requests at once, and one in pieces.
            client.writer.write(post("/v2/models/m/infer", body) * 2)
            assert [await client.whole() for _ in range(2)] == [expected] * 2
            message = post("/v2/models/m/infer", body)
            client.writer.write(message[:-3])
            await client.writer.drain()
            client.writer.write(message[-3:])
            assert await client.whole() == expected
            for length in ("", "-1", "+5", "5a"):
                reader, writer = await asyncio.open_connection(*client.writer.get_extra_info("peername"))
                writer.write(post("/v2/models/m/infer", body, {"Content-Length": length}))
                assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
                writer.close()

    asyncio.run(main())


def test_the_last_of_two_ids_counts(tmp_path):
    write_model(tmp_path, "m", adding(1), CONFIG)
    end = (
        b'"inputs":[{"name":"IN","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}],'
        b'"parameters":{"binary_data_output":true},"id":""}'
    )

    async def main():
        async with serving(tmp_path) as (_engine, client):
            for beginning in (b"{", b"{", b"{", b'{"id":"7",', b'{"id":"7",', b'{"id":"8",'):
                text = beginning + end
                fields = {"Inference-Header-Content-Length": str(len(text))}
                client.writer.write(post("/v2/models/m/infer", text + struct.pack("<f", 1), fields))
                status, document, number = await client.answer()
                assert (status, document.get("id"), number) == (200, None, 2)

    asyncio.run(main())


def test_a_name_that_may_become_ambiguous_has_no_shortcut(tmp_path, shortcuts):
    places = [tmp_path / "one", tmp_path / "two"]
    for number, place in enumerate(places, 1):
        write_model(place, "m", adding(number), CONFIG)

    async def main():
        options = {"more_repositories": places[1:], "namespacing": True}
        async with serving(places[0], ("one::m",), **options) as (engine, client):
            assert [(await client.ask(1))[2] for _ in range(4)] == [2] * 4
            assert not shortcuts
            await engine.control.load("two::m")
            status, document = await client.ask(1)
            assert status == 400
            assert "There are 2 identifiers of model 'm'" in document["error"]

    asyncio.run(main())


def test_an_answer_has_no_fields_of_the_one_before_it(tmp_path, shortcuts):
    """A request of a web page from elsewhere, and then one that takes the shortcut to an error."""
    write_model(tmp_path, "m", adding(1), CONFIG)
    page = {"Origin": "https://example.org"}

    async def main():
        async with serving(tmp_path, cors=Cors(CorsSettings(frozenset({"*"}), False))) as (_engine, client):
            body, fields = text(1), {}
            for fields in ({}, {}, {}, {}, page):
                client.writer.write(post("/v2/models/m/infer", body, fields))
                assert (b"access-control-allow-origin" in await client.whole()) is bool(fields)
            before = len(shortcuts)
            client.writer.write(post("/v2/models/m/infer", text(-1)))
            answer = await client.whole()
            assert answer.startswith(b"HTTP/1.1 500 ")
            assert b"access-control-allow-origin" not in answer
            assert len(shortcuts) == before + 1

    asyncio.run(main())
