"""Every example does what its README says: its client passes, its curl lines get an answer."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request

import pytest

# The first one packs an environment, unless that was done before.
pytestmark = pytest.mark.timeout(900)

CURL_LINE = re.compile(r"^\$ (curl .+)$", re.MULTILINE)


def test_client_passes(demo, server, client):
    reason = demo.missing_tool(client)
    if reason:
        pytest.skip(reason)
    passed, printed = demo.run_client(client, server)
    assert passed, printed


def test_curl_lines_get_an_answer(server, example):
    lines = CURL_LINE.findall((example / "README.md").read_text())
    assert lines, "the README shows no curl line"
    for line in lines:
        with _send(shlex.split(line), server) as reply:
            assert reply.status == 200
            if reply.headers["content-type"] == "application/json":
                assert not json.load(reply).get("error")


def _send(words, server):
    """What curl would send for these words; the machine that runs the tests need not have curl."""
    assert words[:2] in (["curl", "-s"], ["curl", "-sN"])
    target = words[2].replace("localhost:8000", server.url, 1)
    target = target.replace("localhost:8002", server.addresses["Metrics Service"], 1)
    body = words[words.index("-d") + 1].encode() if "-d" in words else None
    return urllib.request.urlopen(urllib.request.Request(f"http://{target}", data=body), timeout=60)


def test_metrics_of_the_demo_server_count_its_requests(demo, server):
    example = next(example for example in demo.find_examples() if example.name == "add_sub")
    before = _successes(server.metrics_url)
    clients = demo.find_clients(example)
    assert [client.name for client in clients] == ["client.py", "client_grpc.py", "client_shm.py"]
    assert all(demo.run_client(client, server)[0] for client in clients)
    assert _successes(server.metrics_url) >= before + 3


def _successes(metrics_url):
    with urllib.request.urlopen(metrics_url, timeout=60) as reply:
        text = reply.read().decode()
    (value,) = re.findall(r'^nv_inference_request_success\{model="add_sub",version="1"\} (\S+)$', text, re.MULTILINE)
    return float(value)


def test_server_that_cannot_start_is_reported_with_its_own_words(demo, tmp_path):
    with pytest.raises(demo.DemoError, match="not a valid directory"), demo.Server(tmp_path / "missing"):
        pass


def test_demo_refuses_unknown_examples():
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "no_such_example"],
        cwd=_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "FAIL: no such example: no_such_example\n")


@pytest.mark.thorough
def test_demo_of_two_examples_passes():
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "add_sub", "string_upper"],
        cwd=_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASS: add_sub") == 3  # over HTTP, over gRPC, and in shared memory
    assert "PASS: string_upper" in done.stdout
    assert "it ended with status 0" in done.stdout


def _root():
    return __file__.rsplit("/tests/", 1)[0]
