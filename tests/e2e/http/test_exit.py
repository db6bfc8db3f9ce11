"""What clients see of a server that stops: open requests get an answer, and connections end with it."""

import json
import os
import signal

import pytest

from tests.e2e.http.models import PROBE
from tests.support.connection import connected, head, post, post_chunked
from tests.support.repositories import tensors, write_model
from tests.support.server import serving

PATH = "/v2/models/probe/infer"


def command(**members):
    tensor = {"name": "COMMAND", "datatype": "BYTES", "shape": [1], "data": [json.dumps(members)]}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.mark.spec("srv-H10")
def test_requests_at_the_end(tmp_path):
    config = f"""
        backend: "python"
        input [ {tensors(COMMAND=("TYPE_STRING", [1]))} ]
        output [ {tensors(SEEN=("TYPE_STRING", [1]), BLOB=("TYPE_STRING", [1]))} ]
    """
    write_model(tmp_path / "models", "probe", PROBE, config)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with serving(tmp_path / "models") as server:
        port = server.port
        with (
            connected(port) as running,
            connected(port) as sending,
            connected(port) as chunking,
            connected(port) as idle,
        ):
            idle.send(head("GET", "/v2/health/live"))
            assert idle.reply().status == 200
            running.send(post(PATH, command(wait_for=str(gate))))
            body = command()
            sending.send(post(PATH, body)[:-5])
            chunked = post_chunked(PATH, [body])
            chunking.send(chunked[:-8])
            server.get("/v2/health/live")
            server.process.send_signal(signal.SIGTERM)
            server.wait_for("Waiting for in-flight requests")
            assert idle.at_end()
            # What had begun to arrive is read to its end and refused with the words for it.
            sending.send(body[-5:])
            chunking.send(chunked[-8:])
            for connection in (sending, chunking):
                reply = connection.reply()
                assert reply.status == 503
                assert reply.error == (
                    "[request id: <id_unknown>] Server is stopping, scheduler for model has stopped accepting new "
                    "inference requests"
                )
                assert reply.headers["connection"] == "close"
                assert connection.at_end()
            with gate.open("w"):
                pass
            answer = running.reply()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert running.at_end()
        assert server.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            server.get("/v2/health/live")
