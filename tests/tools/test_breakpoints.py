"""``breakpoint()`` and ``pdb.set_trace()`` in a model: on the terminal of ``pybackend dev``, and where there is none."""

import http.client
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from tests.support.inference import answer_of, infer_body
from tests.support.log_lines import log_lines
from tests.support.repositories import tensors, write_model
from tests.support.server import DEADLINE_S, Reply, serving

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [1]))} ]
parameters {{ key: "EXECUTION_TIME_LIMIT_S" value {{ string_value: "1" }} }}
"""

STOPS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            value = self.changed(value)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
        return responses

    def changed(self, value):
        {stop}
        factor = np.float32(2)
        return value * factor
"""
STATEMENTS = {"stops": "breakpoint()", "traced": "import pdb; pdb.set_trace()"}
PROMPT = r"\(Pdb\) $"


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("breakpoints")
    for name, statement in STATEMENTS.items():
        write_model(directory, name, STOPS.format(stop=statement), CONFIG)
    return directory


class TerminalServer:
    """``pybackend dev`` whose standard streams are a terminal, and the person who sits there."""

    def __init__(self, repository: Path, *, in_background: bool = False) -> None:
        self._terminal, its_end = pty.openpty()
        flags = ("--http-port=0", "--grpc-port=0", "--metrics-port=0")
        command = [sys.executable, "-m", "pybackend", "dev", str(repository), *flags]
        shell = ["bash", "--norc", "--noprofile", "-i"]
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *(shell if in_background else command)],
            stdin=its_end,
            stdout=its_end,
            stderr=its_end,
        )
        os.close(its_end)
        self.screen = ""
        if in_background:
            os.write(self._terminal, f"{shlex.join(command)} &\n".encode())
        self.port = int(self.wait_for(r"Started HTTPService at 127\.0\.0\.1:(\d+)")[1])

    def type(self, line: str, answer: str) -> str:
        """Type a line, and wait until the screen ends like this; returns what appeared."""
        before = len(self.screen)
        os.write(self._terminal, line.encode())
        return self.wait_for(answer, before)[0]

    def wait_for(self, pattern: str, begin: int = 0) -> re.Match[str]:
        compiled, end = re.compile(pattern), time.monotonic() + DEADLINE_S
        while (found := compiled.search(self.screen, begin)) is None:
            readable, _, _ = select.select([self._terminal], [], [], max(0, end - time.monotonic()))
            assert readable, f"no {pattern!r} on the screen:\n{self.screen}"
            self.screen += os.read(self._terminal, 65536).decode().replace("\r\n", "\n")
        return found

    def end(self) -> int:
        with suppress(OSError):  # a shell that has ended
            os.write(self._terminal, b"\3")  # Ctrl-C
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._terminal)


@pytest.fixture(scope="module")
def dev(repository):
    server = TerminalServer(repository)
    try:
        server.wait_for("following changes of")
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def people():
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def elsewhere(repository):
    with serving(repository) as server:
        yield server


def ask(server, name):
    body, headers = infer_body({"IN": np.ones(1, np.float32)})
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)) as connection:
        connection.request("POST", f"/v2/models/{name}/infer", body, headers)
        response = connection.getresponse()
        lower = {name.lower(): value for name, value in response.getheaders()}
        return answer_of(Reply(response.status, lower, response.read()))


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_model_stops_on_the_terminal(dev, people, name):
    begin = len(dev.screen)
    answer = people.submit(ask, dev, name)
    dev.wait_for(PROMPT, begin)
    assert f"model process '{name}_0' has stopped at a breakpoint" in dev.screen[begin:]
    assert f"/{name}/1/model.py(" in dev.screen[begin:]
    dev.type("print(value)\n", rf"\[1\.\]\n{PROMPT}")
    if "-> factor" in dev.screen[begin:]:  # later interpreters stop at the breakpoint's own line
        dev.type("n\n", rf"-> return value \* factor\n{PROMPT}")
    dev.type("factor = np.float32(10)\n", PROMPT)
    dev.type("p float(factor)\n", rf"10\.0\n{PROMPT}")
    dev.type("c\n", "c\n")
    assert answer.result(DEADLINE_S)["OUT"].item() == 10


def test_the_end_of_the_models_code_ends_the_session(dev, people):
    answer = people.submit(ask, dev, "stops")
    dev.type("", PROMPT)
    dev.type("r\n", rf"--Return--\n(.*\n)+{PROMPT}")
    dev.type("n\n", PROMPT)
    dev.type("r\n", rf"--Return--\n(.*\n)+{PROMPT}")
    dev.type("n\n", "n\n")
    assert answer.result(DEADLINE_S)["OUT"].item() == 2


@pytest.mark.parametrize("leave", ["q\n", "\4"])
def test_leaving_the_debugger_ends_the_execution_with_a_sentence(dev, people, leave):
    answer = people.submit(ask, dev, "stops")
    dev.type("", PROMPT)
    dev.type(leave, r"the debugger's command q ended this execution; c lets it go on")
    refused = answer.result(DEADLINE_S)
    assert refused.status == 500
    assert "the debugger's command q ended this execution; c lets it go on" in refused.error
    assert "BdbQuit" not in dev.screen


def test_processes_have_the_terminal_one_after_the_other(dev, people):
    answers = [people.submit(ask, dev, name) for name in STATEMENTS]
    begin = len(dev.screen)
    dev.wait_for(PROMPT, begin)
    dev.type("p 1 + 1\n", rf"2\n{PROMPT}")
    assert dev.screen.count("has stopped at", begin) == 1
    dev.type("c\n", rf"has stopped at (.*\n)+{PROMPT}")
    dev.type("c\n", "c\n")
    assert [answer.result(DEADLINE_S)["OUT"].item() for answer in answers] == [2, 2]


@pytest.mark.thorough
def test_time_at_the_prompt_counts_for_no_limit(dev, people):
    answer = people.submit(ask, dev, "stops")
    dev.type("", PROMPT)
    dev.type("import time; time.sleep(2.5)\n", rf"2\.5\)\n{PROMPT}")  # the limit is 1 s
    dev.type("c\n", "c\n")
    assert answer.result(DEADLINE_S)["OUT"].item() == 2


def test_a_model_cannot_control_the_terminal(dev, people):
    answer = people.submit(ask, dev, "stops")
    dev.type("", PROMPT)
    dev.type("print(chr(27) + '[2J' + chr(4) + chr(5) + chr(0x2022))\n", rf"\\u001b\[2J\N{{BULLET}}\n{PROMPT}")
    dev.type("c\n", "c\n")
    assert answer.result(DEADLINE_S)["OUT"].item() == 2


@pytest.mark.thorough
def test_a_server_in_the_background_is_not_stopped_and_waits_for_its_turn(repository, people):
    server = TerminalServer(repository, in_background=True)
    try:
        server.wait_for("following changes of")
        answer = people.submit(ask, server, "stops")
        server.wait_for(PROMPT)
        server.type("echo it is the $(echo shell)\n", "it is the shell")
        with urlopen(f"http://127.0.0.1:{server.port}/v2/health/live", timeout=DEADLINE_S) as live:
            assert live.status == 200
        server.type("fg\n", "pybackend dev")
        server.type("c\n", "c\n")
        assert answer.result(DEADLINE_S)["OUT"].item() == 2
        server.type("\3", r"[$#] $")
        server.type("exit\n", "exit")
        server.process.wait(DEADLINE_S)
    finally:
        server.end()


def test_ctrl_c_at_the_prompt_ends_the_server(repository, people):
    server = TerminalServer(repository)
    server.wait_for("following changes of")
    answer = people.submit(ask, server, "stops")
    server.wait_for(PROMPT)
    assert server.end() == 1  # a request was cut short
    assert "was killed" in answer.result(DEADLINE_S).error


@pytest.mark.parametrize("name", STATEMENTS)
def test_without_a_terminal_a_breakpoint_leaves_one_line(elsewhere, name):
    for _ in range(2):
        assert elsewhere.infer(name, *infer_body({"IN": np.ones(1, np.float32)})).status == 200
    elsewhere.wait_for(rf"{name}_0.*breakpoint\(\) and pdb\.set_trace\(\) do nothing here")
    warnings = [line for line in log_lines(elsewhere.output) if name in line.place and "do nothing here" in line.text]
    assert len(warnings) == 1
    assert "BdbQuit" not in elsewhere.output
