"""``pybackend top``: the figures of a running server's models."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pybackend.cli.commands import run
from pybackend_client.connection import Connection
from pybackend_client.figures import Source, rows_between
from tests.support.inference import infer
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import DEADLINE_S, serving

FAILS = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no weights")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repository = tmp_path_factory.mktemp("top")
    write_model(repository, "busy", IDENTITY, identity_config(extra="instance_group { kind: KIND_CPU count: 2 }"))
    write_model(repository, "failing", FAILS, identity_config())
    write_model(repository, "unloaded", IDENTITY, identity_config())
    flags = ("--model-control-mode=explicit", "--load-model=busy", "--load-model=failing")
    flags += ("--metrics-config=summary_latencies=true",)
    with serving(repository, flags=flags) as server:
        yield server


def source(server, *, metrics=True):
    metrics_url = f"http://127.0.0.1:{server.metrics_port}"
    return Source(Connection(server.url, DEADLINE_S), Connection(metrics_url, DEADLINE_S) if metrics else None)


def test_figures_are_those_between_two_looks(server):
    infer(server, "busy", {"IN": np.zeros(1, np.float32)})
    here = source(server)
    before = here.sample()
    for _ in range(3):
        assert infer(server, "busy", {"IN": np.zeros(1, np.float32)}).status == 200
        assert infer(server, "failing", {"IN": np.zeros(1, np.float32)}).status == 500
    after = here.sample()
    assert here.trouble == ""
    rows = {row.model: row for row in rows_between(before, after)}
    assert list(rows) == ["busy", "failing", "unloaded"]
    busy, failing = rows["busy"], rows["failing"]
    elapsed_s = after.taken_s - before.taken_s
    assert busy.requests_per_s == pytest.approx(3 / elapsed_s)
    assert (busy.failures_per_s, busy.failures, busy.waiting, busy.restarts) == (0, 0, 0, 0)
    assert busy.requests - before.statistics["busy", "1"]["inference_stats"]["success"]["count"] == 3
    assert (busy.instances, busy.instances_ready) == (2, 2)
    assert 0 < busy.execute_p50_ms <= busy.execute_p99_ms
    (recent_s,) = (
        value
        for series, value in server.metrics().items()
        if series.startswith('pybackend_recent_execution_seconds{model="busy"') and 'quantile="0.99"' in series
    )
    assert busy.execute_p99_ms == recent_s * 1000  # the page has a summary of the last minute, too
    assert busy.execute_ms > 0
    assert busy.queue_ms >= 0
    assert busy.resident_bytes > 2 * 1_000_000
    assert busy.cpu_cores >= 0
    assert failing.failures_per_s == pytest.approx(3 / elapsed_s)
    assert (failing.requests, failing.execute_ms, failing.execute_p50_ms) == (0, None, None)
    assert (rows["unloaded"].state, rows["unloaded"].requests) == ("", None)
    # A model that was loaded again counts from 0.
    restarted = rows_between(after, before)
    assert all((row.requests_per_s or 0) >= 0 for row in restarted)
    without = {row.model: row for row in rows_between(before, source(server, metrics=False).sample())}
    assert (without["busy"].instances, without["busy"].execute_p50_ms) == (None, None)


def test_one_table_or_one_object(server, capsys):
    url, metrics = f"--url={server.url}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}"
    assert run(["top", "--json", "--interval=0.01", url, metrics]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["interval_s"] > 0
    assert [row["model"] for row in document["models"]] == ["busy", "failing", "unloaded"]
    assert document["models"][0]["instances"] == 2
    assert run(["top", "--once", "--interval=0.01", url, metrics]) == 0
    head, headings, busy, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith(f"http://{server.url}: 2 of 3 ready, ")
    assert headings.split()[:5] == ["MODEL", "VERSION", "STATE", "INSTANCES", "REQ/S"]
    assert busy.split()[:4] == ["busy", "1", "READY", "2/2"]
    assert headings.split()[-3:] == ["CPU", "RSS", "MB"]
    assert float(busy.split()[-1]) > 2
    assert run(["top", "--once", "--interval=0.01", url, f"--metrics-url=http://{server.url}"]) == 0
    assert "is not the server's port for metrics: --metrics-url=URL names it" in capsys.readouterr().out
    # Metrics that do not answer are no reason to show nothing.
    assert run(["top", "--once", "--interval=0.01", url, "--metrics-url=http://127.0.0.1:1"]) == 0
    out = capsys.readouterr().out
    assert "no metrics: no server answers at http://127.0.0.1:1: Connection refused. --metrics-url=URL names" in out
    assert run(["top", "--once", "--url=http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith("error: no server answers at http://127.0.0.1:1: Connection refused. ")
    assert run(["top", "--interval=0"]) == 1


@pytest.mark.parametrize("given", [(), ("--metrics-url=http://127.0.0.1:{}/metrics",)])
def test_metrics_are_found_at_any_port(server, capsys, given):
    """The server says where they are; an operator may give the URL that Prometheus has."""
    flags = [flag.format(server.metrics_port) for flag in given]
    assert run(["top", "--json", "--interval=0.01", f"--url={server.url}", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["instances"] == 2


def test_a_live_table_on_a_terminal(server):
    terminal, its_end = pty.openpty()
    command = [sys.executable, "-m", "pybackend", "top", "--interval=0.05", f"--url={server.url}", "--metrics-url=none"]
    with subprocess.Popen(command, stdin=its_end, stdout=its_end, stderr=its_end) as process:
        os.close(its_end)
        try:
            shown = _read_until(terminal, b"READY")
            process.send_signal(signal.SIGINT)
            shown += _read_until(terminal, b"\x1b[?1049l")
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            os.close(terminal)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"2 of 3 ready" in shown


def _read_until(terminal, text):
    shown, end = b"", time.monotonic() + DEADLINE_S
    while text not in shown:
        left = end - time.monotonic()
        assert left > 0, shown
        if select.select([terminal], [], [], left)[0]:
            shown += os.read(terminal, 4096)
    return shown


def test_each_front_end_has_a_row(tmp_path, capsys):
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    with serving(tmp_path, flags=("--front-ends=2",)) as server:
        urls = [f"--url={server.url}", f"--metrics-url=http://127.0.0.1:{server.metrics_port}", "--interval=0.1"]
        assert run(["top", "--json", *urls]) == 0
        rows = json.loads(capsys.readouterr().out)["front_ends"]
        assert [(row["front_end"], row["restarts"]) for row in rows] == [("1", 0), ("2", 0)]
        assert all(
            row["resident_bytes"] > 1 << 20 and row["cpu_cores"] >= 0 and row["connections"] >= 0 for row in rows
        )
        assert run(["top", "--once", *urls]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1].split() == ["FRONT", "END", "CONNECTIONS", "RESTARTS", "CPU", "RSS", "MB"]
        assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
        assert lines[5].startswith("MODEL")
