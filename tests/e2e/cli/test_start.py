"""How a server starts: repositories, ports, models that fail, and what it prints."""

import ctypes
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pybackend.repository.reports import LONGEST_TABLE
from tests.support.gates import GATE, Gate, wait_until
from tests.support.listeners import addresses
from tests.support.log_lines import server_tracebacks
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.server import free_of_processes, serving
from tests.support.warm_start import run_command

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2  # linux/prctl.h, linux/capability.h

FREE_PORTS = (
    "--http-address=127.0.0.1",
    "--http-port=0",
    "--grpc-address=127.0.0.1",
    "--grpc-port=0",
    "--metrics-port=0",
)

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the weights are missing")
"""

MARKED = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        mark(self.directory, "finalized")
"""
)

SLOW_START = (
    GATE
    + """
class TritonPythonModel:
    def initialize(self, args):
        print("initialize begins", flush=True)
        pass_gate(args["model_repository"], "initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
)

LINE = re.compile(r'([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ (?:\w+/)?[\w.]+:\d+\] "(.*)"')


@pytest.fixture
def repository(tmp_path):
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@contextmanager
def listening(address: str = "127.0.0.1", port: int = 0):
    """Somebody else's socket."""
    with socket.socket() as taken:
        taken.bind((address, port))
        taken.listen()
        yield taken.getsockname()[1]


def obey_file_modes() -> None:
    """Give up, in a child before it executes a program, what lets root read files that nobody may read."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise PermissionError


def said(output: str) -> list[tuple[str, str]]:
    """The lines of the log as (level, message)."""
    lines = [LINE.fullmatch(line) for line in output.splitlines()]
    assert all(lines), output
    return [(line[1], line[2]) for line in lines]


class TestRepository:
    def test_that_is_not_there(self, pybackend, tmp_path):
        done = pybackend("serve", str(tmp_path / "nothing"), *FREE_PORTS)
        assert done.returncode == 1
        assert done.stderr == (
            f"error: repository path is not a valid directory: '{tmp_path}/nothing': it does not exist\n"
        )

    def test_that_is_a_file(self, pybackend, tmp_path):
        (tmp_path / "file").touch()
        done = pybackend("serve", str(tmp_path / "file"), *FREE_PORTS)
        assert done.returncode == 1
        assert (
            done.stderr
            == f"error: repository path is not a valid directory: '{tmp_path}/file': it is not a directory\n"
        )

    def test_that_is_there_beside_one_that_is_not(self, pybackend, repository, tmp_path):
        write_model(repository, "identity", IDENTITY, identity_config())
        done = pybackend("serve", str(repository), f"--model-repository={tmp_path / 'nothing'}", *FREE_PORTS)
        assert done.returncode == 1
        assert "nothing': it does not exist" in done.stderr
        assert done.stdout == ""

    def test_that_this_user_may_not_read(self, pybackend, repository):
        write_model(repository, "identity", IDENTITY, identity_config())
        repository.chmod(0)
        try:
            done = pybackend("serve", str(repository), *FREE_PORTS, preexec_fn=obey_file_modes)
        except subprocess.SubprocessError:
            pytest.skip("root reads everything, and may not give that up here")
        finally:
            repository.chmod(stat.S_IRWXU)
        assert done.returncode == 1
        assert done.stderr == (
            f"error: repository path is not a valid directory: '{repository}': it cannot be read (Permission denied)\n"
        )

    def test_without_models_is_served_with_a_warning(self, repository):
        with serving(repository) as server:
            assert server.get("/v2/health/ready").status == 200
            assert f"Found no model in {repository}" in server.output
            assert server.stub_pids() == []
            assert server.stop() == 0


class TestPorts:
    @pytest.mark.spec("srv-P03")
    @pytest.mark.parametrize(
        ("service", "flag"), [("HTTP", "--http-port"), ("GRPC", "--grpc-port"), ("Metrics", "--metrics-port")]
    )
    def test_a_busy_port(self, pybackend, repository, service, flag):
        write_model(repository, "identity", IDENTITY, identity_config())
        with listening() as port:
            done = pybackend("serve", str(repository), *FREE_PORTS, f"{flag}={port}")
        assert done.returncode == 1
        text = f"error: failed to start {service} service: Socket '127.0.0.1:{port}' already in use"
        assert done.stderr.startswith(text)
        assert f"choose another port with {flag}" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert "Started" not in done.stdout

    @pytest.mark.spec("srv-P03")
    def test_a_port_of_another_server(self, pybackend, repository):
        with serving(repository) as server:
            done = pybackend("serve", str(repository), *FREE_PORTS, f"--http-port={server.port}")
            assert done.returncode == 1
            assert f"Socket '127.0.0.1:{server.port}' already in use" in done.stderr
            assert server.get("/v2/health/ready").status == 200

    @pytest.mark.spec("srv-P03")
    def test_one_port_for_both_services(self, pybackend, repository):
        with listening() as port:
            pass  # a port that is free now
        same = ("--http-address=127.0.0.1", f"--http-port={port}", f"--metrics-port={port}")
        done = pybackend("serve", str(repository), *same)
        assert done.returncode == 1
        assert done.stderr == (
            "error: The server cannot listen to HTTP requests and Metrics requests at the same address and port "
            f"127.0.0.1:{port}\n"
        )

    def test_an_address_of_another_machine(self, pybackend, repository):
        done = pybackend("serve", str(repository), *FREE_PORTS, "--http-address=192.0.2.1")
        assert done.returncode == 1
        assert done.stderr.startswith("error: failed to start HTTP service: cannot listen on '192.0.2.1:0': ")

    @pytest.mark.parametrize("address", ["no such host", "a..b", "x" * 100, "999.1.1.1"])
    def test_what_is_no_address(self, pybackend, repository, address):
        done = pybackend("serve", str(repository), *FREE_PORTS, f"--metrics-address={address}")
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: failed to start Metrics service: cannot listen on '{address}:0': ")

    @pytest.mark.spec("srv-H46")
    def test_an_address_is_the_only_one_that_answers(self, repository):
        with serving(repository, flags=("--http-address=127.0.0.2",), ready=False) as server:
            port = int(server.wait_for(r"Started HTTPService at 127\.0\.0\.2:(\d+)")[1])
            metrics_port = int(server.wait_for(r"Started Metrics Service at 127\.0\.0\.2:(\d+)")[1])
            for each in (port, metrics_port):
                with socket.create_connection(("127.0.0.2", each)):
                    pass
                assert addresses(server.process.pid, each) == {"127.0.0.2"}

    @pytest.mark.spec("srv-H46")
    def test_every_address_answers_by_default(self, repository):
        with serving(repository, flags=("--http-address=0.0.0.0",), ready=False) as server:
            for address in ("127.0.0.1", "127.0.0.2"):
                with socket.create_connection((address, server.port)):
                    pass

    @pytest.mark.spec("srv-H46")
    @pytest.mark.parametrize("address", ["::1", "[::1]"])
    def test_ipv6(self, repository, address):
        with serving(repository, flags=(f"--http-address={address}",), ready=False) as server:
            port = int(server.wait_for(r"Started HTTPService at \[::1\]:(\d+)")[1])
            with socket.create_connection(("::1", port)) as connection:
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")
            assert addresses(server.process.pid, port) == {"::1"}

    def test_services_that_are_switched_off(self, repository):
        with serving(repository, flags=("--allow-metrics=false",)) as server:
            assert "Metrics" not in server.output
        with serving(repository, flags=("--allow-http=false",), ready=False) as server:
            page = server.request("GET", "/metrics", port=server.metrics_port)
            assert b"nv_cpu_utilization" in page.body
            assert "HTTPService" not in server.output
            assert server.stop() == 0


class TestModelsThatFail:
    @pytest.mark.spec("srv-P04")
    def test_end_the_server_after_the_others_were_finalized(self, pybackend, repository):
        good = write_model(repository, "good", MARKED, identity_config())
        write_model(repository, "bad", BROKEN, identity_config())
        write_model(repository, "unreadable", IDENTITY, "no: such field")
        done = pybackend("serve", str(repository), *FREE_PORTS)
        assert done.returncode == 1
        assert re.fullmatch(
            r"error: creating server: Internal - failed to load all models: 1 of 3 models are ready in \d+\.\d s; failed, as "
            r"said above: bad, unreadable\. --exit-on-error=false serves the others; the manual's page 'Troubleshooting' has such reasons by their first words",
            done.stderr.splitlines()[-1],
        )
        assert done.stderr.count("Internal: ValueError: the weights are missing") == 1
        assert done.stderr.count("Invalid argument: failed to read text proto from ") == 1
        assert (good / "finalized").read_text() == "x"
        assert "successfully unloaded 'good' version 1" in done.stdout

    @pytest.mark.spec("srv-P04")
    def test_one_of_many_is_named_with_its_reason_in_the_last_line(self, pybackend, repository):
        count = LONGEST_TABLE + 5
        for number in range(count):
            model = IDENTITY if number != 7 else BROKEN
            write_model(repository, f"m{number:02}", model, identity_config())
        done = pybackend("serve", str(repository), *FREE_PORTS)
        assert re.fullmatch(
            rf"error: creating server: Internal - failed to load all models: {count - 1} of {count} models are ready in "
            r"\d+\.\d s; failed: m07 \(Internal: ValueError: the weights are missing\)\. "
            r"--exit-on-error=false serves the others; the manual's page 'Troubleshooting' has such reasons by their first words",
            done.stderr.splitlines()[-1],
        )
        assert "| READY" not in done.stdout
        assert "loaded 'm07'" not in done.stdout

    @pytest.mark.spec("srv-P04")
    @pytest.mark.parametrize("flags", [(), ("--exit-on-error=true",), ("--exit-on-error",)])
    def test_are_fatal_by_default(self, pybackend, repository, flags):
        write_model(repository, "bad", BROKEN, identity_config())
        done = pybackend("serve", str(repository), *FREE_PORTS, *flags)
        assert done.returncode == 1
        assert "error: creating server: Internal - failed to load all models" in done.stderr

    @pytest.mark.spec("srv-P04")
    def test_leave_the_others_served_if_the_operator_says_so(self, repository):
        write_model(repository, "good", IDENTITY, identity_config())
        write_model(repository, "bad", BROKEN, identity_config())
        with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
            server.wait_until("/v2/models/good/ready", 200)
            body = {"inputs": [{"name": "IN", "shape": [2], "datatype": "FP32", "data": [1, 2]}]}
            assert server.infer("good", body).json["outputs"][0]["data"] == [1, 2]
            server.wait_for(r"bad +\| 1 \| UNAVAILABLE")
            server.wait_for(r"1 of 2 models are ready in \d+\.\d s; failed, as said above: bad\b")
            assert server.get("/v2/health/live").status == 200
            assert server.get("/v2/health/ready").status == 400
            assert server.get("/v2/models/bad/ready").status == 400
            assert server.infer("bad", body).status in {400, 404, 503}
            assert server.stop() == 0

    @pytest.mark.spec("srv-P04")
    def test_do_not_count_when_readiness_is_not_strict(self, repository):
        write_model(repository, "bad", BROKEN, identity_config())
        with serving(repository, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
            assert server.get("/v2/health/ready").status == 200
            assert server.get("/v2/models/bad/ready").status == 400

    def test_have_their_reason_in_the_log_and_in_the_table(self, pybackend, repository):
        write_model(repository, "bad", BROKEN, identity_config())
        done = pybackend("serve", str(repository), *FREE_PORTS)
        first, failed = [text for level, text in said("\n".join(done.stderr.splitlines()[:-1])) if level == "E"]
        assert first.startswith("Failed to initialize Python stub: ValueError: the weights are missing\\nTraceback")
        assert failed.startswith("failed to load 'bad' version 1: Internal: ValueError: the weights are missing")
        assert "model.py" in failed
        (row,) = [text for _, text in said(done.stdout) if text.startswith("bad ")]
        assert re.fullmatch(r"bad \| 1 \| UNAVAILABLE: Internal: ValueError: the weights are missing", row)

    def test_leave_no_process_behind(self, repository):
        write_model(repository, "bad", BROKEN, identity_config())
        write_model(repository, "good", IDENTITY, identity_config())
        with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
            server.wait_until("/v2/models/good/ready", 200)
            server.wait_for(r"bad +\| 1 \| UNAVAILABLE")
            wait_until(lambda: len(server.stub_pids()) == 1, f"processes: {server.stub_pids()}")


class TestWhileModelsLoad:
    @pytest.fixture
    def loading(self, repository):
        """A server, and the gate behind which one of its models waits in ``initialize``."""
        gate = Gate(write_model(repository, "slow", SLOW_START, identity_config()), "initialize")
        write_model(repository, "quick", MARKED, identity_config())
        with serving(repository, flags=("--exit-timeout-secs=3600",), ready=False) as server:
            gate.wait_reached()
            server.wait_for("successfully loaded 'quick'")
            yield server, gate

    def test_the_server_lives_and_is_not_ready(self, loading):
        server, gate = loading
        assert server.get("/v2/health/live").status == 200
        assert server.get("/v2/health/ready").status == 400
        assert server.get("/v2").status == 200
        assert server.get("/v2/models/slow/ready").status == 400
        assert server.get("/v2/models/quick/ready").status == 200
        assert server.request("GET", "/metrics", port=server.metrics_port).status == 200
        gate.open()
        server.wait_ready()
        assert server.get("/v2/models/slow/ready").status == 200
        assert server.stop() == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it(self, loading, repository, number):
        server, _gate = loading
        pids = server.stub_pids()
        assert len(pids) == 2
        assert server.stop(number) == 0
        assert f"Signal ({int(number)}) received." in server.output
        assert free_of_processes(pids)
        assert (repository / "quick" / "finalized").read_text() == "x", "what was loaded is finalized"
        assert "successfully unloaded 'quick' version 1" in server.output
        assert "successfully unloaded 'slow'" not in server.output, "it never was loaded"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anything_else_ends_it_without_a_traceback(repository, number, whole_starts):
    """While the server still imports its own packages; models' processes are started before that."""
    write_model(repository, "identity", IDENTITY, identity_config())
    with serving(repository, ready=False) as server:
        wait_until(lambda: server.stub_pids() or server.process.poll() is not None, "no process is started")
        pids = server.stub_pids()
        assert server.stop(number) in {0, -number, 128 + number}
        assert not server_tracebacks(server.output)
        assert free_of_processes(pids)


class TestOutput:
    @pytest.fixture
    def streams(self, repository):
        """Runs a server until it is ready and returns what it wrote to stdout and stderr."""
        write_model(repository, "good", IDENTITY, identity_config())
        write_model(repository, "bad", BROKEN, identity_config())

        def run(*flags):
            done = run_command("serve", str(repository), *FREE_PORTS, *flags, timeout=60)
            return done.stdout, done.stderr

        return run

    def test_information_goes_to_stdout_and_trouble_to_stderr(self, streams):
        stdout, stderr = streams()
        assert {level for level, _ in said(stdout)} == {"I"}
        # What cannot be had of the models' sandboxes on this machine is a warning.
        assert {level for level, _ in said("\n".join(stderr.splitlines()[:-1]))} - {"W"} == {"E"}

    def test_it_says_what_loads_in_what_time_and_where_it_listens(self, streams):
        texts = [text for _, text in said(streams()[0])]
        expected = [
            r"Started HTTPService at 127\.0\.0\.1:\d+",
            r"Started Metrics Service at 127\.0\.0\.1:\d+",
            r"loading: good:1",
            r"successfully loaded 'good' version 1 in \d+\.\d\d s",
            r"good \| 1 \| READY",
            r"successfully unloaded 'good' version 1",
        ]
        for pattern in expected:
            assert sum(bool(re.fullmatch(pattern, text)) for text in texts) == 1, pattern

    def test_levels_can_be_switched_off(self, streams):
        stdout, stderr = streams("--log-info=false", "--log-warning=false", "--log-error=false")
        assert stdout == ""
        assert stderr.startswith(
            "error: creating server: Internal - failed to load all models: 1 of 2 models are ready"
        )
        assert len(stderr.splitlines()) == 1

    def test_models_load_one_after_another_if_told_to(self, repository):
        for name in ("a", "b", "c"):
            write_model(repository, name, IDENTITY, identity_config())
        with serving(repository, flags=("--model-load-thread-count=1",)) as server:
            steps = re.findall(r"(loading|successfully loaded)\W+(\w)", server.output)
        assert [step for step, _ in steps] == ["loading", "successfully loaded"] * 3
        names = [name for _, name in steps]
        assert names[::2] == names[1::2], "another load began before one had ended"
        assert sorted(names[::2]) == ["a", "b", "c"]


def test_the_console_script_is_the_same_command(pybackend):
    script = shutil.which("pybackend", path=os.path.dirname(sys.executable))
    if script is None:
        pytest.skip("the package is on the path and not installed")
    done = subprocess.run([script, "serve"], capture_output=True, text=True, timeout=60, check=False)
    again = pybackend("serve")
    assert (done.returncode, done.stdout, done.stderr) == (again.returncode, again.stdout, again.stderr)
