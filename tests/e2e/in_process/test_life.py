"""The life of a server in the caller's process: its start and end, forks, signals, and what it leaves alone."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import pybackend
from pybackend_wire.zygote import MARK
from tests.support.descriptors import open_descriptors
from tests.support.gates import GATE, Gate, wait_until
from tests.support.repositories import copy_model, write_model
from tests.support.server import DEADLINE_S, free_of_processes
from tests.support.thorough import thorough

pytestmark = [pytest.mark.e2e, pytest.mark.spec("srv-P14")]

_ONE = {"IN": np.array([1], np.int32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    copy_model(repository, "countdown_to")
    return repository


def answer(server: pybackend.Server) -> int:
    return len(list(server.model("countdown_to").infer(inputs=_ONE)))


@contextmanager
def program(code: str, repository: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that sees ``server``, which is not started, and ``report(...)``; it prints its children's ids at the
    end."""
    head = """
    import os, signal, sys, time
    from contextlib import suppress
    from pathlib import Path
    import numpy as np
    import pybackend

    server = pybackend.Server(model_repository=sys.argv[1], flags=["--exit-timeout-secs=60"])

    def report(*words):
        print(*words, flush=True)

    def children():
        found = []
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # a thread has ended
                found += (task / "children").read_text().split()
        return found

    def infer():
        return len(list(server.model("countdown_to").infer(inputs={"IN": np.array([1], np.int32)})))
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    with subprocess.Popen(
        [sys.executable, "-c", text, str(repository)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(code: str, repository: Path) -> tuple[int, list[str], str]:
    """The exit status of such a program, its lines, and what it says to stderr."""
    with program(code, repository) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    return process.returncode, output.splitlines(), errors


def test_it_changes_nothing_of_its_process(repository: Path) -> None:
    def state() -> list[object]:
        log = logging.getLogger("pybackend")
        return [
            *(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)),
            signal.set_wakeup_fd(-1),
            gc.get_threshold(),
            gc.isenabled(),
            resource.getrlimit(resource.RLIMIT_NOFILE),
            resource.getrlimit(MARK),
            Path.cwd(),
            dict(os.environ),
            list(logging.root.handlers),
            (list(log.handlers), log.propagate, log.level),
            sys.stdout,
            sys.excepthook,
            threading.excepthook,
        ]

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        before, frozen = state(), gc.get_freeze_count()
        with pybackend.Server(model_repository=repository) as server:
            assert answer(server) == 2
            assert state() == before
            assert gc.get_freeze_count() <= frozen, "some of them may have been freed"
        assert state() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.thorough
def test_orphans_of_the_caller_stay_what_they_are(repository: Path) -> None:
    status, lines, errors = said(
        """
        import ctypes
        with server:
            is_subreaper = ctypes.c_int()
            ctypes.CDLL(None).prctl(37, ctypes.byref(is_subreaper), 0, 0, 0)
            report(is_subreaper.value, os.umask(0o22) == os.umask(0o22))
        """,
        repository,
    )
    assert (status, lines) == (0, ["0 True"]), errors


def test_start_and_stop_in_any_order(repository: Path) -> None:
    server = pybackend.Server(model_repository=repository)
    server.stop()
    with pytest.raises(pybackend.UnavailableError, match=r"^the server is not started: call start"):
        server.model("countdown_to").infer(inputs=_ONE)
    server.start(wait_until_ready=True)
    model = server.model("countdown_to")
    with pytest.raises(pybackend.InvalidArgumentError, match=r"^the server is started already"):
        server.start()
    stopping = [threading.Thread(target=server.stop) for _ in range(2)]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
    with pytest.raises(pybackend.UnavailableError, match=r"^the server is stopped: start"):
        model.infer(inputs=_ONE)
    with pytest.raises(pybackend.UnavailableError, match=r"^the server is stopped: start"):
        server.metrics()
    with server:
        assert len(list(model.infer(inputs=_ONE))) == 2


def test_every_call_ends_when_the_server_stops_meanwhile(repository: Path) -> None:
    server = pybackend.Server(model_repository=repository)
    server.start()
    model = server.model("countdown_to")
    answered, ended = threading.Barrier(9), []

    def call_until_it_stops() -> None:
        assert len(list(model.infer(inputs=_ONE))) == 2
        answered.wait()
        while True:
            try:
                assert len(list(model.infer(inputs=_ONE))) == 2
            except pybackend.UnavailableError as error:
                ended.append(str(error))
                return

    async def call_in_loop() -> None:
        async def call() -> None:
            try:
                while True:
                    _ = [each async for each in model.async_infer(inputs=_ONE)]
            except pybackend.UnavailableError as error:
                ended.append(str(error))

        await asyncio.gather(*(call() for _ in range(8)))

    threads = [threading.Thread(target=call_until_it_stops) for _ in range(8)]
    threads.append(threading.Thread(target=lambda: asyncio.run(call_in_loop())))
    for thread in threads:
        thread.start()
    answered.wait()
    server.stop()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(ended) == 16
    assert all("stop" in error for error in ended)


def test_a_model_that_dies_fails_its_request_and_serves_the_next(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            if requests[0].request_id() == "die":
                import os
                os._exit(3)
            return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    write_model(tmp_path, "mortal", code, 'backend: "python"\noutput { name: "OUT" data_type: TYPE_FP32 dims: [1] }')
    with pybackend.Server(model_repository=tmp_path) as server:
        model = server.model("mortal")
        with pytest.raises(pybackend.TritonError, match="mortal"):
            _ = model.infer(request_id="die").response
        wait_until(model.ready, "the model's process is not replaced")
        assert model.infer(request_id="live").outputs == {}


def test_two_servers_at_once_leave_each_others_processes_alone(repository: Path) -> None:
    with (
        pybackend.Server(model_repository=repository) as first,
        pybackend.Server(model_repository=repository) as second,
    ):
        assert answer(first) == answer(second) == 2
        first.stop()
        assert answer(second) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_repository": "/nowhere"}, "/nowhere"),
        ({"model_repository": "/tmp", "model_control_mode": "often"}, 'Bad option: "model_control_mode"'),
        ({"model_repository": "/tmp", "flags": ["--colour"]}, "--colour"),
        ({"model_repository": "/tmp", "flags": ["--on=ray"]}, "^--on runs other servers"),
        ({"model_repository": "/tmp", "exit_timeout": -1}, "exit_timeout"),
    ],
)
def test_a_wrong_option_is_one_clear_sentence(fields: dict[str, object], message: str) -> None:
    server = pybackend.Server(**fields)
    with pytest.raises(pybackend.TritonError, match=message) as raised:
        server.start()
    assert "\n" not in str(raised.value)
    with pytest.raises(pybackend.UnavailableError, match=r"^the server is not started"):
        server.live()


def test_options_come_as_one_object_or_by_name() -> None:
    with pytest.raises(pybackend.InvalidArgumentError, match=r"^pass Options, or their fields"):
        pybackend.Server(pybackend.Options("/tmp"), server_id="x")


def test_options_of_the_reference_are_accepted(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = pybackend.Options(
        str(repository),
        server_id="own",
        model_control_mode=pybackend.ModelControlMode.EXPLICIT,
        startup_models=["countdown_to"],
        strict_readiness=False,
        exit_timeout=5,
        cache_config={"local": {"size": 1048576}},
        rate_limiter_mode=pybackend.RateLimitMode.EXEC_COUNT,
        rate_limiter_resources=[("R1", 4, None), ("R2", 2, 0)],
        pinned_memory_pool_size=2**20,
        cuda_memory_pool_sizes={0: 2**20},
        cache_directory="/opt/caches",
        min_supported_compute_capability=6.0,
        buffer_manager_thread_count=1,
        repo_agent_directory="/opt/agents",
        backend_configuration={"python": {"default-max-batch-size": 4}},
        host_policies={"first": {"cpu-cores": "0-0"}},
        metrics_configuration={"summary_latencies": True},
        log_format=pybackend.LogFormat.ISO8601,
        gpu_metrics=False,
        cpu_metrics=False,
        metrics_interval=1000,
    )
    with pybackend.Server(options) as server:
        assert server.metadata()["name"] == "own"
        assert answer(server) == 2
        assert "nv_cpu_utilization" not in server.metrics()
        assert "_summary_us" in server.metrics()
    (warning,) = [record.getMessage() for record in caplog.records if "pinned" in record.getMessage()]
    assert "--cache-directory" in warning


def test_a_start_that_fails_says_why_and_can_be_tried_again(tmp_path: Path) -> None:
    directory = write_model(tmp_path, "broken", "raise RuntimeError('no weights here')")
    server = pybackend.Server(model_repository=tmp_path)
    with pytest.raises(pybackend.InternalError, match=r"failed: broken .*no weights here.*exit_on_error=False serves"):
        server.start()
    (directory / "config.pbtxt").unlink()
    (directory / "1/model.py").unlink()
    copy_model(tmp_path, "countdown_to")
    with pybackend.Server(model_repository=tmp_path, exit_on_error=False) as server:
        assert answer(server) == 2
        assert not server.ready()


def test_a_port_in_use_is_a_sentence(repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = pybackend.Server(model_repository=repository, http_port=taken.getsockname()[1])
        with pytest.raises(pybackend.InternalError, match=r"HTTP.*in use"):
            server.start()


def test_models_are_loaded_and_unloaded(tmp_path: Path) -> None:
    copy_model(tmp_path, "countdown_to")
    with pybackend.Server(model_repository=tmp_path, model_control_mode=pybackend.ModelControlMode.EXPLICIT) as server:
        assert server.models(exclude_not_ready=True) == {}
        model = server.load("countdown_to")
        assert answer(server) == 2
        server.unload(model, wait_until_unloaded=True, timeout=DEADLINE_S)
        with pytest.raises(pybackend.TritonError):
            answer(server)
        with pytest.raises(pybackend.InvalidArgumentError, match=r"load parameter 'file:1/model.py' is of type str"):
            server.load("countdown_to", {"file:1/model.py": "text"})
        with pytest.raises(pybackend.TritonError, match="nothing"):
            server.load("nothing")
        code = (tmp_path / "countdown_to/1/model.py").read_bytes().replace(b"range(number)", b"range(2 * number)")
        config = {"backend": "python", "model_transaction_policy": {"decoupled": True}}
        config |= {key: [{"name": name, "data_type": "TYPE_INT32", "dims": [1]}] for key, name in _TENSORS.items()}
        server.load("countdown_to", {"config": json.dumps(config), "file:1/model.py": code})
        assert answer(server) == 3


_TENSORS = {"input": "IN", "output": "OUT"}


def test_lines_go_through_pythons_logging_or_to_the_servers_own_file(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pybackend")
    with pybackend.Server(model_repository=repository) as server:
        with pytest.raises(pybackend.UnsupportedError, match="Python's logging"):
            server.log.settings()
        assert server.live()
    assert any("countdown_to" in record.getMessage() for record in caplog.records)
    file = tmp_path / "server.log"
    with pybackend.Server(model_repository=repository, log_info=True, log_file=file) as server:
        assert server.log.settings()["log_info"] is True
        assert server.log.update(log_verbose_level=1)["log_verbose_level"] == 1
        with pytest.raises(pybackend.InvalidArgumentError, match="'colour' is no setting of the log"):
            server.log.update(colour=True)
    wait_until(lambda: "countdown_to" in file.read_text(), "the log has no line about the model")
    wait_until(lambda: str(file) not in _open_files(), "the log's file is still open")


def _open_files() -> list[str]:
    return [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]


def test_ports_are_opened_on_request(repository: Path) -> None:
    import tritonclient.grpc
    import tritonclient.http

    with pybackend.Server(model_repository=repository, http_port=0, grpc_port=0, metrics_port=0) as server:
        with tritonclient.http.InferenceServerClient(server.http_address) as client:
            assert client.is_server_ready()
        with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
            assert client.is_model_ready("countdown_to")
        assert server.metrics_address.startswith("127.0.0.1:")


@pytest.mark.thorough
def test_a_server_that_nobody_refers_to_ends(repository: Path) -> None:
    status, lines, errors = said(
        """
        server.start()
        model = server.model("countdown_to")
        found = children()
        del server
        report(len(list(model.infer(inputs={"IN": np.array([1], np.int32)}))))
        del model
        while children():
            time.sleep(0.01)
        report("gone", len(found) > 0)
        """,
        repository,
    )
    assert (status, lines) == (0, ["2", "gone True"]), errors


@pytest.mark.parametrize(
    "end", ["", "os.kill(os.getpid(), signal.SIGKILL)", *thorough("raise SystemExit(3)", "os._exit(4)")]
)
def test_an_end_without_stop_leaves_nothing_behind(repository: Path, end: str, tmp_path: Path) -> None:
    status, lines, errors = said(
        f"""
        server.start()
        infer()
        report(*children())
        {end}
        """,
        repository,
    )
    assert status == {"": 0, "raise": 3, "os.kill": -9, "os._exit": 4}[re.split(r"[ (]", end)[0]], errors
    assert free_of_processes([int(pid) for pid in lines[-1].split()])
    assert errors == "" or "Traceback" not in errors


@pytest.mark.thorough
def test_an_end_without_stop_finalizes_models(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = f"""
    class TritonPythonModel:
        def execute(self, requests):
            return []
        def finalize(self):
            open("{done}", "w").close()
    """
    write_model(
        tmp_path / "models",
        "last",
        code,
        'backend: "python"\nparameters { key: "SANDBOX" value { string_value: "off" } }',
    )
    status, _, errors = said("server.start()", tmp_path / "models")
    assert status == 0, errors
    assert done.exists(), errors


def test_ctrl_c_in_a_with_block_stops_the_server(repository: Path) -> None:
    with program(
        """
        with server:
            infer()
            report(*children())
            signal.pause()
        """,
        repository,
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert pids
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert free_of_processes(pids)


@pytest.mark.thorough
def test_ctrl_c_while_the_server_stops_cuts_requests_short(tmp_path: Path) -> None:
    code = (
        GATE
        + """
class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
    def execute(self, requests):
        pass_gate(self.directory, "execute")
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
    )
    gate = Gate(write_model(tmp_path, "held", code, 'backend: "python"'), "execute")
    with program(
        """
        import logging
        logging.basicConfig(level=logging.INFO)
        with server:
            responses = server.model("held").infer()
            report("sent")
            while True:
                signal.pause()
        """,
        tmp_path,
    ) as process:
        gate.wait_reached()
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            threading.Event().wait(0.2)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert "KeyboardInterrupt" in errors
    assert re.search(
        r"The server waits at most \d+ s for this, its exit timeout\.$", errors, re.MULTILINE
    )  # who stops, decides
    gate.open()


def test_a_forked_child_may_not_use_the_server_and_harms_nobody(repository: Path) -> None:
    status, lines, errors = said(
        """
        with server:
            responses = server.model("countdown_to").infer(inputs={"IN": np.array([1], np.int32)})
            pid = os.fork()
            if not pid:
                for use in (infer, server.start, server.metrics, lambda: next(responses)):
                    try:
                        use()
                    except pybackend.UnavailableError as error:
                        report(error)
                server.stop()
                sys.exit(0)
            report(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), infer())
        """,
        repository,
    )
    forked = "this process was forked from the one whose server this is: make and start a server in this process"
    taken = "the response belongs to the process from which this one was forked"
    assert (status, lines) == (0, [forked, forked, forked, taken, "0 2"]), errors


@pytest.mark.thorough
def test_a_forked_child_starts_a_server_of_its_own_and_holds_no_port_of_the_parents(repository: Path) -> None:
    status, lines, errors = said(
        """
        import socket
        server = pybackend.Server(model_repository=sys.argv[1], http_port=0)
        server.start()
        host, port = server.http_address.split(":")
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            own = pybackend.Server(model_repository=sys.argv[1])
            with own:
                report("child", own.ready())
            os.read(reading, 1)
            os._exit(0)
        server.stop()
        try:
            socket.create_connection((host, int(port)))
        except ConnectionRefusedError:
            report("refused")
        os.write(writing, b"x")
        os.waitpid(pid, 0)
        """,
        repository,
    )
    assert (status, sorted(lines)) == (0, ["child True", "refused"]), errors


def test_the_import_is_cheap() -> None:
    code = "import sys, pybackend; print([m for m in ('numpy', 'asyncio', 'fastapi', 'uvloop', 'argparse') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    with pytest.raises(AttributeError, match=r"^module 'pybackend' has no attribute 'Sever'$"):
        _ = pybackend.Sever


def test_a_stopped_server_leaves_nothing_in_memory_and_no_descriptor(repository: Path) -> None:
    def serve() -> weakref.ref[object]:
        with pybackend.Server(model_repository=repository, http_port=0, grpc_port=0, metrics_port=0) as server:
            assert answer(server) == 2
            server.metadata()
            return weakref.ref(server.model("x")._life.host.server.engine)

    engine = serve()
    before = open_descriptors()
    engines = [engine, serve()]
    gc.collect()
    assert [engine() for engine in engines] == [None, None]
    assert not open_descriptors() - before


@pytest.mark.thorough
def test_without_descriptors_the_start_says_so(repository: Path) -> None:
    status, lines, errors = said(
        """
        import resource
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))
        try:
            server.start()
        except pybackend.UnavailableError as error:
            report(error)
        """,
        repository,
    )
    assert (status, lines) == (0, ["the server cannot start: Too many open files"]), errors


@pytest.mark.thorough
def test_ctrl_c_during_the_start_ends_it(tmp_path: Path) -> None:
    code = (
        GATE
        + """
class TritonPythonModel:
    def initialize(self, args):
        pass_gate(args["model_repository"], "initialize")
    def execute(self, requests):
        return []
"""
    )
    gate = Gate(write_model(tmp_path, "held", code, 'backend: "python"'), "initialize")
    with program(
        """
        try:
            server.start()
        except KeyboardInterrupt:
            report(children())
        """,
        tmp_path,
    ) as process:
        gate.wait_reached()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (0, "[]\n"), errors
