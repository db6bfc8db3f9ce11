"""What the log says about a model's errors: the whole chain, the requests, how often, and what is wrong with its class."""

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.gates import GATE, Gate, wait_until
from tests.support.inference import infer
from tests.support.log_lines import log_lines
from tests.support.repositories import tensors, write_model
from tests.support.served import served
from tests.support.server import serving

CONFIG = f"""
backend: "python"
input [ {tensors(IN=("TYPE_FP32", [-1]))} ]
output [ {tensors(OUT=("TYPE_FP32", [-1]))} ]
"""

# The first element of the input chooses an error.
RAISING = """
def weights():
    raise KeyError("w")


def group():
    from builtins import ExceptionGroup
    raise ExceptionGroup("several", [ValueError("one"), OSError("two")])


def fail(number):
    if number == 1:
        try:
            weights()
        except KeyError as error:
            raise ValueError("no weights") from error
    if number == 2:
        try:
            weights()
        except KeyError:
            raise ValueError("in the middle of it")
    if number == 3:
        error = ValueError("noted")
        error.add_note("look at the weights")
        raise error
    if number == 4:
        group()
    if number == 5:
        raise ValueError("first line\\nE0101 00:00:00.000000 1 forged.py:1] not a record")
    raise ValueError("always the same")


class TritonPythonModel:
    def execute(self, requests):
        fail(int(requests[0].inputs()[0].as_numpy().flat[0]))
"""

STREAMS = """
class TritonPythonModel:
    async def execute(self, requests):
        raise ValueError("in a coroutine")
"""


def ask(server, model, number, request_id=""):
    document = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [number]}]}
    return server.infer(model, {"id": request_id, **document} if request_id else document)


@served()
def server(repository):
    for name in ("chain", "repeats", "both"):
        write_model(repository, name, RAISING, CONFIG + ("instance_group { count: 2 }" if name == "both" else ""))


def report(server, instance, *pieces):
    """The first line of an instance's log that has all of these pieces."""
    server.wait_for(f"{instance}/[^\n]*" + "[^\n]*".join(map(re.escape, pieces)))
    lines = [line for line in log_lines(server.output) if line.place.startswith(f"{instance}/")]
    return next(line for line in lines if all(piece in line.text for piece in pieces))


# --- The chain ---


@pytest.mark.spec("pb-E03")
def test_a_cause_reaches_the_log_and_the_answer_stays_as_it_is(server):
    answer = ask(server, "chain", 1, "client-7")
    file = server.repository / "chain/1/model.py"
    head = "Failed to process the request(s) for model 'chain_0', message: ValueError: no weights"
    source = file.read_text().splitlines()
    called, key, failed, execute = (
        next(number for number, line in enumerate(source, 1) if text in line)
        for text in ("        weights()", "KeyError(", "from error", "fail(int(")
    )
    assert answer.error == f"{head}\n\nAt:\n  {file}({failed}): fail\n  {file}({execute}): execute\n"
    line = report(server, "chain_0", "no weights")
    assert (line.letter, line.place) == ("E", f"chain_0/model.py:{failed}")
    carets = re.compile(r"\n +[~^]+(?=\n)")  # newer Pythons underline what failed
    assert carets.sub("", line.text) == (
        f"{head}\nRequest id 'client-7'\nTraceback (most recent call last):\n"
        f'  File "{file}", line {called}, in fail\n    weights()\n'
        f'  File "{file}", line {key}, in weights\n    raise KeyError("w")\nKeyError: \'w\'\n\n'
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        f'  File "{file}", line {execute}, in execute\n    fail(int(requests[0].inputs()[0].as_numpy().flat[0]))\n'
        f'  File "{file}", line {failed}, in fail\n    raise ValueError("no weights") from error\nValueError: no weights'
    )


@pytest.mark.parametrize(
    ("number", "pieces"),
    [
        (2, ("ValueError: in the middle of it", "KeyError: 'w'", "During handling of the above exception, another")),
        (3, ("ValueError: noted", "look at the weights")),
        (4, ("ExceptionGroup: several", "+---------------- 2 ----", "OSError: two")),
    ],
)
def test_contexts_notes_and_groups_reach_the_log(server, number, pieces):
    ask(server, "chain", number)
    text = report(server, "chain_0", pieces[0]).text
    assert all(piece in text for piece in pieces)
    assert re.search(r"\nExecution \d+\n", text), "the client gave no id"


def test_a_record_is_one_line_of_a_pipe(server):
    ask(server, "chain", 5)
    line = report(server, "chain_0", "first line")
    assert "not a record" in line.text
    assert not re.search(r"^E0101", server.output, re.MULTILINE)


# --- Repeats ---


def counted(server, model):
    """How many failures of a model the log tells of: the number written, and the counts."""
    lines = [line.text for line in log_lines(server.output) if line.place.startswith(f"{model}_0")]
    written = [text for text in lines if text.startswith("Failed to process") and "always the same" in text]
    more = [match for text in lines if (match := re.match(r"\.\.\. and (\d+) more like it in the last second; ", text))]
    return len(written), [int(match[1]) for match in more]


def told_of(server, model):
    written, more = counted(server, model)
    return written + sum(more)


@pytest.mark.parametrize("model", ["repeats", "both"])
def test_repeats_are_counted_and_none_is_lost(server, model):
    for number in range(300):
        assert ask(server, model, 0, f"id-{number}").status == 500
    server.wait_for(rf"{model}_0[^\n]*more like it in the last second; last request id 'id-\d+': ValueError: always")
    wait_until(lambda: told_of(server, model) >= 300, lambda: f"300 failures were told of:\n{server.output}")
    written, more = counted(server, model)
    assert told_of(server, model) == 300
    assert written + len(more) < 100, "far fewer lines than failures"
    server.wait_for(rf"{model}_0[^\n]*always the same[^\n]*Request id 'id-0'[^\n]*Traceback")


def test_a_count_is_written_when_the_server_ends(tmp_path):
    write_model(tmp_path, "ends", RAISING, CONFIG)
    with serving(tmp_path) as server:
        for _ in range(10):
            ask(server, "ends", 0)
        assert server.stop() == 0
        assert told_of(server, "ends") == 10


def test_a_batch_names_its_requests(tmp_path):
    config = (
        CONFIG + "max_batch_size: 8 dynamic_batching { preferred_batch_size: 5 max_queue_delay_microseconds: 30000000 }"
    )
    write_model(tmp_path, "batch", RAISING, config)
    message = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [0]}]}
    with serving(tmp_path) as server, ThreadPoolExecutor(5) as pool:
        bodies = [{"id": f"id-{number}", **message} for number in range(4)] + [message]
        list(pool.map(lambda body: server.infer("batch", body), bodies))
        text = report(server, "batch_0", "always the same").text
        assert re.search(r"\nRequest ids 'id-\d', 'id-\d', 'id-\d' and 2 more requests\n", text)


# --- Loading ---

BAD = {
    "no_module": (
        "import torch_that_nobody_has",
        r"cannot import {file}: there is no module 'torch_that_nobody_has' in its Python 3\.\d+ \(.+\)\n"
        r'Traceback \(most recent call last\):\n  File "{file}", line 3, in <module>\n',
    ),
    "syntax": (
        "class TritonPythonModel:\n    def execute(self, requests)\n        pass",
        r"cannot import {file}: line 4 of {file} is not valid Python 3\.\d+: .+\n  File \"{file}\", line 4\n",
    ),
    "at_import": (
        "def prepare():\n    return nothing\n\nprepare()",
        r"cannot import {file}: NameError: name 'nothing' is not defined\nTraceback \(most recent call last\):\n"
        r'  File "{file}", line 6, in <module>\n',
    ),
    "in_initialize": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        try:\n            open('/nowhere')\n"
        "        except OSError as error:\n            raise RuntimeError('no weights') from error",
        r"Failed to initialize Python stub: RuntimeError: no weights\nTraceback [^\n]+\n  File \"{file}\", line 6, in "
        r"initialize\n(?s:.*)direct cause(?s:.*)RuntimeError: no weights$",
    ),
}
WRONG = {
    "misspelt": (
        "class TritonPythonModel:\n    def exceute(self, requests): pass",
        "Python model {file} does not implement `execute` method. TritonPythonModel has no method execute; did you mean "
        "'exceute'?",
    ),
    "without": (
        "class TritonPythonModel:\n    pass",
        "Python model {file} does not implement `execute` method. TritonPythonModel has no method execute",
    ),
    "not_callable": (
        "class TritonPythonModel:\n    execute = 3",
        "Python model {file} does not implement `execute` method. TritonPythonModel.execute cannot be called: it is of "
        "type 'int'",
    ),
    "other_name": (
        "class TritonPythonModle:\n    def execute(self, requests): pass",
        "module '1.model' has no attribute 'TritonPythonModel': {file} must define class TritonPythonModel; did you mean "
        "'TritonPythonModle'?",
    ),
    "model": (
        "class Model:\n    def execute(self, requests): pass",
        "module '1.model' has no attribute 'TritonPythonModel': {file} must define class TritonPythonModel; did you mean "
        "'Model'?",
    ),
    "no_class": (
        "TritonPythonModel = 'add_sub'",
        "TritonPythonModel in {file} must be a class, but it is of type 'str'",
    ),
}
FINE = """
class TritonPythonModel:
    def initialise(self, args):
        pass

    def initialize_later(self):
        pass

    def finalise(self):
        pass

    def {name}(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.float32))]) for _ in requests]

    def __init__(self):
        self.execute = self.{name}
"""


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    repository = tmp_path_factory.mktemp("failing")
    for name, (code, _) in (BAD | WRONG).items():
        write_model(repository, name, code, CONFIG)
    write_model(repository, "fine", FINE.format(name="execute_later"), CONFIG)
    with serving(repository, flags=("--exit-on-error=false",), ready=False) as server:
        server.wait_for("Started HTTPService")
        server.wait_for(r"READY")
        server.repository = repository
        yield server


@pytest.mark.parametrize("name", BAD)
def test_a_failed_load_is_a_sentence_and_the_authors_traceback(failing, name):
    file = re.escape(str(failing.repository / name / "1" / "model.py"))
    pattern = BAD[name][1].replace("{file}", file)
    lines = [line for line in log_lines(failing.output) if line.place.startswith(f"{name}_0/")]
    assert len(lines) == 1
    assert lines[0].letter == "E"
    assert not lines[0].place.endswith(":0")
    assert re.match(pattern, lines[0].text)
    assert "pybackend_s" not in lines[0].text
    assert "frozen" not in lines[0].text


@pytest.mark.spec("pb-E10")
@pytest.mark.parametrize("name", WRONG)
def test_a_class_that_cannot_execute_is_refused_at_load(failing, name):
    file = failing.repository / name / "1" / "model.py"
    text = WRONG[name][1].format(file=file)
    assert f"failed to load '{name}' version 1: Internal: {text}" in [line.text for line in log_lines(failing.output)]


def test_misspelt_optional_methods_are_warned_of(failing):
    warnings = [
        line.text for line in log_lines(failing.output) if line.letter == "W" and line.place.startswith("fine_0/")
    ]
    assert warnings == [
        f"TritonPythonModel has no method {name}; did you mean '{similar}'? The server does not call '{similar}'"
        for name, similar in (("initialize", "initialise"), ("finalize", "finalise"))
    ]


def test_an_object_may_bring_execute_along(failing):
    assert infer(failing, "fine", {"IN": np.ones(1, np.float32)})["OUT"].tolist() == [1]


# --- Death ---

DYING = f"""
import os, signal
{GATE}


class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]

    def execute(self, requests):
        pass_gate(self.directory, "execute")
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.spec("pb-H03")
def test_the_line_about_a_death_says_who_how_and_what_next(tmp_path):
    directory = write_model(
        tmp_path, "dying", DYING, CONFIG + 'parameters { key: "RESTART_LIMIT" value { string_value: "2" } }'
    )
    with serving(tmp_path) as server:
        Gate(directory, "execute").open_path.touch()
        cause = "was killed by signal 9 (SIGKILL), which is also how the kernel ends a process when memory runs out"
        for prospect in (
            "Restart 1 of at most 2 in a row begins now.",
            "Restart 2 of at most 2 in a row begins in 0.1 s.",
            "It is given up after 2 restarts in a row: it is tried again in 60 s, or at the next request.",
        ):
            (pid,) = server.stub_pids()
            assert ask(server, "dying", 0).status == 500
            server.wait_for(re.escape(prospect))
            said = [line.text for line in log_lines(server.output) if line.text.startswith("Stub process 'dying_0'")]
            assert said[-1] == (
                f"Stub process 'dying_0' is not healthy. The process {cause}. It was process {pid} and took 1 request "
                f"with it. {prospect}"
            )
            if prospect.startswith("Restart"):
                server.wait_until("/v2/models/dying/ready", 200)
        server.wait_for("is given up after 2 restarts")
