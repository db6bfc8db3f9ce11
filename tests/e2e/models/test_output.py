"""What a model prints, and logs without ``pb_utils``: every line in the server's log, in order, labelled."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

import pytest

from pybackend.observability.model_output import BURST_UNITS, UNITS_PER_S
from tests.support.gates import wait_until
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.log_lines import lines_with, log_lines
from tests.support.repositories import identity_config, write_model
from tests.support.server import free_of_processes, serving

PLAIN = r"laboratory_0_0/output:\d+"
TALKING = """
import logging
import sys

print("talking: printed at import")
logging.warning("talking: logged at import")


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        print("talking: while completing")
        return config

    def initialize(self, args):
        print("talking: in initialize", file=sys.stderr)
        logging.getLogger("mine").error("talking: logged in initialize")

    def execute(self, requests):
        return [pb_utils.InferenceResponse() for _ in requests]

    def finalize(self):
        print("talking: in finalize", end="")
"""
TALKATIVE = """
print("text")
print("text", file=sys.stderr)
pb_utils.Logger.log_error("text")
return out(OUT=np.ones(1))
"""
DROPPED = 'pybackend_model_output_dropped_lines_total{model="flooding",version="1"}'


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    repository = tmp_path_factory.mktemp("output")
    write_laboratory(repository)
    write_laboratory(repository, "flooding")
    write_model(repository, "talking", TALKING, identity_config())
    return repository


@pytest.fixture(scope="module")
def server(repository):
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


@pytest.mark.spec("pb-G02")
def test_everything_that_one_thread_says_keeps_its_order(server, lab):
    pid = int(
        lab(
            """
            import ctypes, logging, subprocess
            log = logging.getLogger("order")
            libc = ctypes.CDLL(None)
            for round in range(20):
                print("order:", round, "print")
                pb_utils.Logger.log_info(f"order: {round} Logger")
                print("order:", round, "stderr", file=sys.stderr)
                log.warning("order: %d logging", round)
                libc.printf(b"order: %d native\\n", round)
                os.write(2, b"order: %d written\\n" % round)
                if round % 5 == 0:
                    subprocess.run(["echo", f"order: {round} subprocess"], check=True)
                pb_utils.Logger.log_error(f"order: {round} last")
            return out(OUT=text(os.getpid()))
            """
        )["OUT"][0]
    )
    lines = lines_with(server, "order:", "19 last")
    kinds = ["print", "Logger", "stderr", "logging", "native", "written", "subprocess", "last"]
    assert [line.text for line in lines] == [
        f"order: {number} {kind}" for number in range(20) for kind in kinds if kind != "subprocess" or number % 5 == 0
    ]
    letters = {"logging": "W", "last": "E"}
    for line in lines:
        kind = line.text.split()[-1]
        assert line.letter == letters.get(kind, "I")
        assert line.pid == pid
        assert re.fullmatch(
            r"laboratory_0_0/<laboratory>:\d+" if kind in {"Logger", "logging", "last"} else PLAIN, line.place
        )
    numbers = [int(line.place.rpartition(":")[2]) for line in lines if "/output:" in line.place]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.spec("pb-G02")
def test_every_phase_can_print(repository):
    with serving(repository) as server:
        server.stop()
        lines = [line for line in log_lines(server.output) if line.text.startswith("talking:")]
    assert [(line.letter, line.place, line.text) for line in lines] == [
        ("I", "talking_0/output:1", "talking: printed at import"),
        ("W", "talking_0/model.py:8", "talking: logged at import"),
        ("I", "talking_0/output:2", "talking: while completing"),
        ("I", "talking_0/output:3", "talking: in initialize"),
        ("E", "talking_0/model.py:19", "talking: logged in initialize"),
        ("I", "talking_0/output:4", "talking: in finalize"),
    ]


@pytest.mark.spec("pb-G02")
def test_levels_of_the_logging_module(server, lab):
    """A model that has only said which level it wants gets that; one that chose a format gets its own lines."""
    lab(
        """
        import logging
        log = logging.getLogger("levels")
        log.info("levels: not wanted")
        log.setLevel(logging.DEBUG)
        log.debug("levels: debug")
        log.info("levels: info")
        log.critical("levels: critical")
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("levels: exception")
        logging.basicConfig(level=logging.INFO)
        logging.info("levels: basic %s", "info")
        log.warning("levels: basic warning")
        log.propagate = False
        own = logging.StreamHandler(sys.stdout)
        own.setFormatter(logging.Formatter("levels: %(levelname)s|%(message)s"))
        log.addHandler(own)
        log.error("own")
        logging.getLogger().handlers.clear()
        print("levels: last")
        return out(OUT=np.ones(1))
        """
    )
    lines = lines_with(server, "levels:", "last")
    assert [(line.letter, line.text.split("\n")[0], "output" in line.place) for line in lines] == [
        ("I", "levels: info", False),
        ("E", "levels: critical", False),
        ("E", "levels: exception", False),
        ("I", "levels: basic info", False),
        ("W", "levels: basic warning", False),
        ("I", "levels: ERROR|own", True),
        ("I", "levels: last", True),
    ]
    assert "ZeroDivisionError: division by zero" in lines[2].text


def test_debug_records_are_verbose(tmp_path):
    write_laboratory(tmp_path)
    with serving(tmp_path, flags=("--log-verbose=1",)) as server:
        laboratory(server)(
            """
            import logging
            logging.basicConfig(level=logging.DEBUG)
            logging.debug("verbose: one")
            logging.info("verbose: last")
            return out(OUT=np.ones(1))
            """
        )
        assert [line.text for line in lines_with(server, "verbose:", "last")] == ["verbose: one", "verbose: last"]


def test_a_model_without_logging_does_not_pay_for_it(lab):
    assert lab('return out(OUT=np.array(["multiprocessing" in sys.modules]))')["OUT"].tolist() == [False]


def test_odd_bytes_and_shapes_of_lines(server, lab):
    lab(
        r"""
        print("odd: ä 😀 \udc80")
        os.write(1, b"odd: \xff\x00\x1b[1m\n")
        os.write(1, b"odd: \x1e[1,2]\n")
        os.write(1, b"odd: 0%\rodd: 50%\rodd: 100%\r\n")
        os.write(1, b"odd: one ")
        pb_utils.Logger.log_info("odd: between")
        os.write(1, b"line\n")
        print("odd: " + "x" * 300_000)
        print("odd: last")
        return out(OUT=np.ones(1))
        """
    )
    assert [line.text for line in lines_with(server, "odd:", "last")] == [
        "odd: ä 😀 \\udc80",
        "odd: \\xff\x00\x1b[1m",
        "odd: \x1e[1,2]",
        "odd: 100%",
        "odd: between",
        "odd: one line",
        "odd: " + "x" * (256 * 1024 - 5) + "... (37861 more bytes)",
        "odd: last",
    ]


def test_lines_of_threads_and_forks_stay_whole(server, lab):
    """Short and long ones; a record that needs several pieces too."""
    lab(
        """
        def talk(name):
            for number in range(30):
                print(f"whole: {name} print {number}")
                pb_utils.Logger.log_info(f"whole: {name} short {number}")
                if number % 10 == 0:
                    pb_utils.Logger.log_info(f"whole: {name} long {number} " + name * 20_000)
        threads = [threading.Thread(target=talk, args=[name]) for name in "abc"]
        children = []
        for name in "de":
            pid = os.fork()
            if not pid:
                try:
                    talk(name)
                finally:
                    sys.stdout.flush()
                    os._exit(0)
            children.append(pid)
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        [os.waitpid(pid, 0) for pid in children]
        print("whole: last")
        return out(OUT=np.ones(1))
        """
    )
    lines = [line.text.split() for line in lines_with(server, "whole:", "last")[:-1]]
    for name in "abcde":
        mine = [(kind, int(number)) for _, who, kind, number, *_ in lines if who == name]
        expected = []
        for number in range(30):
            expected += [("print", number), ("short", number)] + [("long", number)] * (number % 10 == 0)
        assert mine == expected
    assert {rest for _, _, kind, _, *rest in map(tuple, lines) if kind == "long" for rest in rest} == {
        name * 20_000 for name in "abcde"
    }


def test_lines_appear_while_execute_runs(server, repository):
    """And not only with its answer: what hangs should say where. A line without an end comes after a while."""
    gate = repository / "gate"
    code = f"""
    print("meanwhile: printed")
    print("meanwhile: not done", end="", flush=True)
    while not os.path.exists({str(gate)!r}):
        time.sleep(0.002)
    return out(OUT=np.ones(1))
    """
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(laboratory(server), code)
        try:
            server.wait_for('"meanwhile: printed"')
            server.wait_for('"meanwhile: not done"')
            assert not answer.done()
        finally:
            gate.touch()
        assert answer.result()["OUT"].tolist() == [1]


def test_a_model_may_do_what_it_likes_with_its_streams(server, lab):
    lab(
        """
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as caught:
            print("streams: caught")
        saved = os.dup(1), os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        print("streams: into nothing")
        pb_utils.Logger.log_info("streams: Logger needs neither")
        os.set_blocking(saved[0], False)
        for number in range(200):
            pb_utils.Logger.log_verbose("streams: " + "x" * 3000)
        os.set_blocking(saved[0], True)
        os.dup2(saved[0], 1), os.dup2(saved[1], 2)
        [os.close(each) for each in (*saved, null)]
        print("streams: last")
        return out(OUT=np.ones(1))
        """
    )
    assert [line.text for line in lines_with(server, "streams:", "last")] == [
        "streams: Logger needs neither",
        "streams: last",
    ]


@pytest.mark.faults
def test_last_words_of_a_process_that_dies(server, lab):
    """Before the line that says that it died, a last line without end included."""
    answer = lab(
        """
        print("death: complete")
        os.write(1, b"death: not complete")
        os.kill(os.getpid(), 9)
        """
    )
    assert answer.status == 500
    server.wait_for("instance 'laboratory_0_0' is restarted")
    said = [line.text for line in log_lines(server.output)]
    at = said.index("death: complete")
    assert said[at + 1] == "death: not complete"
    assert said[at + 2].startswith("Stub process 'laboratory_0_0' is not healthy.")


@pytest.mark.faults
def test_a_child_that_holds_the_pipe_keeps_nobody_waiting(server, lab, repository):
    """It would outlive the model's process, and ends with it."""
    lab(
        f"""
        import subprocess
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        with open({str(repository / "child")!r}, "w") as file:
            file.write(str(child.pid))
        print("outlived: by a child")
        os._exit(3)
        """
    )
    child = int((repository / "child").read_text())
    server.wait_for("(?s)outlived: by a child.*instance 'laboratory_0_0' is restarted")
    assert lab("return out(OUT=np.ones(1))")["OUT"].tolist() == [1]
    assert free_of_processes([child])


@pytest.mark.thorough
@pytest.mark.spec("pb-G02")
@pytest.mark.faults
def test_a_flood_of_100_mb(server, lab):
    """Other models are served, the model is not held up, what was dropped is counted, and the server's memory stays."""
    flooding = laboratory(server, "flooding")
    asked = []
    done = threading.Event()

    def ask():
        while not done.is_set():
            asked.append(lab("return out(OUT=np.ones(1))")["OUT"].tolist())

    began_s = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            flooding(
                """
                line = "flood: " + "x" * 92 + "\\n"
                for _ in range(10_000):
                    sys.stdout.write(line * 100)
                return out(OUT=np.ones(1))
                """
            )
        finally:
            done.set()
        asking.result()
    end_s = time.monotonic() + 60
    while True:
        output, dropped = server.output, server.metrics()[DROPPED]
        kept = output.count('"flood: ')
        said = [int(number) for number in re.findall(r"'flooding_0_0' [a-z ]+: dropped (\d+) lines", output)]
        if kept + dropped == 1_000_000 and sum(said) == dropped:
            break
        assert time.monotonic() < end_s, (kept, dropped, said)
        threading.Event().wait(0.1)
    # A line of 100 bytes costs two units of the budget, which fills up meanwhile.
    assert 5_000 < kept <= (BURST_UNITS + UNITS_PER_S * (time.monotonic() - began_s)) / 2
    assert len(asked) > 20
    assert asked == [[1]] * len(asked)
    flooding('print("flood: heard again")\nreturn out(OUT=np.ones(1))')
    server.wait_for('"flood: heard again"')


@pytest.mark.faults
def test_a_reader_of_the_log_that_stalls_stops_no_request(repository):
    """A terminal that is held, a pipe whose reader sleeps: the server serves on, and nothing is lost that soon."""
    with serving(repository) as server:
        lab = laboratory(server)
        with server.unheard():
            for number in range(5):
                code = f"""
                for line in range(100):
                    pb_utils.Logger.log_info("stall: {number} %d " % line + "x" * 1000)
                return out(OUT=np.ones(1))
                """
                assert lab(code)["OUT"].tolist() == [1]
        lab('print("stall: last")\nreturn out(OUT=np.ones(1))')
        lines = lines_with(server, "stall:", "last")
    assert [line.text.split()[1:3] for line in lines[:-1]] == [
        [str(number), str(line)] for number in range(5) for line in range(100)
    ]


@pytest.mark.faults
def test_a_server_that_nobody_can_hear(tmp_path):
    """Its standard streams are closed: their descriptors must not become a socket that a model prints into."""
    write_laboratory(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = f"--model-repository={tmp_path} --http-address=127.0.0.1 --http-port={port} --allow-metrics=false"
    with subprocess.Popen(["sh", "-c", f"exec {sys.executable} -m pybackend serve {flags} <&- >&- 2>&-"]) as process:
        try:
            wait_until(lambda: is_ready(port), "the server is ready")
            document = {"inputs": [{"name": "CODE", "datatype": "BYTES", "shape": [1], "data": [TALKATIVE]}]}
            with urlopen(f"http://127.0.0.1:{port}/v2/models/laboratory/infer", json.dumps(document).encode()) as reply:
                assert json.load(reply)["outputs"][0]["data"] == [1]
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def is_ready(port):
    try:
        with urlopen(f"http://127.0.0.1:{port}/v2/health/ready"):
            return True
    except OSError:
        return False
