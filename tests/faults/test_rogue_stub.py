"""A model's process that does not keep to the protocol: it is killed, its requests are answered, another one starts."""

import os
import re
import signal

import pytest

from tests.faults.victims import VICTIM, Asker, ask, told, write_victim
from tests.support.gates import wait_until
from tests.support.server import serving
from tests.support.thorough import one_in

ROGUE = (
    VICTIM
    + """
    # The descriptor over which the stub and its host speak is the only socket that a stub has.
    def control(self):
        import socket
        mark(self.directory, "begun")
        for name in os.listdir("/proc/self/fd"):
            try:
                if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                    return socket.socket(fileno=int(name))
            except OSError:
                pass

    def stay(self):
        while True:
            time.sleep(1)

    def close(self, _):
        self.control().close()
        self.stay()

    def shutdown(self, how):
        self.control().shutdown(int(how))
        self.stay()

    def raw(self, text):
        self.control().sendall(eval(text))
        self.stay()

    def metadata(self, text):
        self.send_frame(eval(text))

    def say(self, text):
        from pybackend_wire.framing import available
        self.send_frame(available()[0].dumps(eval(text)))

    def say_with_tail(self, text):
        from pybackend_wire.framing import available
        messages, tail = eval(text)
        self.send_frame(available()[0].dumps(messages), tail)

    def send_frame(self, metadata, tail=b""):
        from pybackend_wire.framing import HEADER
        self.control().sendall(HEADER.pack(len(metadata), len(tail)) + metadata + tail)
        self.stay()

    def flood_with(self, text):
        from pybackend_wire.framing import available
        from pybackend_wire.framing import HEADER
        metadata = available()[0].dumps(eval(text))
        control, data = self.control(), HEADER.pack(len(metadata), 0) + metadata
        print("on and on")
        while True:
            control.sendall(data * 1000)

    def flood(self, text):
        control, data = self.control(), eval(text)
        while True:
            control.sendall(data)
"""
)

HELLO, COMPLETED, RESULT, FREE_INPUT, NEED_OUTPUT, FINALIZED, DETACHED = 33, 34, 37, 38, 39, 41, 42
RESPOND, HANDED_BACK, CALL, READINESS, CHANGE_METRIC, LOAD_MODEL = 43, 44, 45, 47, 50, 53

ENDS = {
    "closes its socket": "close",
    "closes both directions": "shutdown 2",
    "closes the direction to the host": "shutdown 1",
}


def result(*outputs: str, error: str = "None") -> str:
    """The text of a message that answers the request of a process's first execution."""
    return f"[{RESULT}, 1, 1, 1, 1, 1, [[{error}, [{', '.join(outputs)}], None]]]"


def call(*inputs: str) -> str:
    """The text of a message that runs a model."""
    return f"[{CALL}, 1, 'honest', -1, False, 0, [{', '.join(inputs)}], [], None, []]"


TOO_LARGE = "['COMMAND', 'UINT8', [8193], 0, 0, 8193]"

LIES = {
    "garbage": "raw b'\\xff' * 64",
    "a header of a frame too large": "raw b'\\xff\\xff\\xff\\x00\\xff\\xff\\xff\\x7f'",
    "metadata that does not decode": "metadata b'\\xc1\\xc1\\xc1\\xc1'",
    "an empty frame": "raw bytes(8)",
    "a document that is no list": "say {'messages': 1}",
    "a message of unknown kind": "say [[99]]",
    "a message of the host": "say [[5, []]]",
    "a message with a part missing": f"say [[{DETACHED}]]",
    "a message with a part of another type": f"say [[{NEED_OUTPUT}, 'much']]",
    "a negative size": f"say [[{NEED_OUTPUT}, -1]]",
    "a greeting in the middle": f"say [[{HELLO}, 1, 1, '', '', [], {{}}]]",
    "the end without being told to": f"say [[{FINALIZED}, None]]",
    "input memory that was not lent": f"say [[{FREE_INPUT}, [[1, 0]]]]",
    "answers to more requests than there are": f"say [[{RESULT}, 1, 1, 1, 1, 1, [[None, [], None], [None, [], None]]]]",
    "an error code that does not exist": "say [" + result(error="[99, '']") + "]",
    "an output in memory that is not there": "say [" + result("['OUT', 'BYTES', [1], 77, 0, 8]") + "]",
    "an output beyond its frame": "say [" + result("['OUT', 'BYTES', [1], 0, 0, 1 << 40]") + "]",
    "an output too large for its frame": "say_with_tail [" + result(TOO_LARGE) + "], bytes(8193)",
    "a call too large for its frame": "say_with_tail [" + call(TOO_LARGE) + "], bytes(8193)",
    "an output of no datatype": "say [" + result("['OUT', 'FP12', [1], 0, 0, 0]") + "]",
    "an output whose shape is another size": "say [" + result("['OUT', 'FP32', [7], 0, 0, 0]") + "]",
    "an answer to an execution that was not sent": f"say [[{RESULT}, 2, 1, 1, 1, 1, [None]]]",
    "a response to an execution that was not sent": f"say [[{RESPOND}, 2, 0, True, None]]",
    "a response without content": f"say [[{RESPOND}, 1, 0, False, None]]",
    "work handed back that was not sent": f"say [[{HANDED_BACK}, [1, 2]]]",
    "a call with memory that is not there": "say [" + call("['COMMAND', 'BYTES', [1], 77, 0, 8]") + "]",
    "a call beyond its frame": "say [" + call("['COMMAND', 'BYTES', [1], 0, 0, 1 << 40]") + "]",
    "a call with a shape of another size": "say [" + call("['COMMAND', 'FP32', [7], 0, 0, 0]") + "]",
    "readiness that nobody asked for": f"say [[{READINESS}, True, '']]",
    "a metric that is not there": f"say [[{CHANGE_METRIC}, 1, 0, 1.0]]",
    "a model in memory that is not there": f"say [[{LOAD_MODEL}, 1, 'm', '', [['f', 'UINT8', [8], 77, 0, 8]]]]",
    "a frame of very many messages": f"say [[{DETACHED}, 0]] * 100000",
    "a flood of garbage": "flood os.urandom(1 << 20)",
    "a flood of zeros": "flood bytes(1 << 20)",
    "a flood of requests for memory": f"flood_with [[{NEED_OUTPUT}, 1]]",
    "a flood of requests for more memory than there is": f"flood_with [[{NEED_OUTPUT}, 1 << 60]]",
}
"""What a rogue is told to do, by what that is."""

UNDECODABLE = {
    "metadata that does not decode",
    "an empty frame",
    "a document that is no list",
    "a message of unknown kind",
    "a message of the host",
    "a message with a part missing",
    "a message with a part of another type",
    "a negative size",
    "an error code that does not exist",
    "a flood of zeros",
    "a frame of very many messages",
}
"""Those of them that are not even messages."""

TALKS_WITHOUT_END, ANSWERS_TWICE = "talks without end", "answers twice"


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("rogues")


def model_name(what: str) -> str:
    return what.replace(" ", "_")


@pytest.fixture(scope="module")
def server(repository):
    """A model for each misdeed: one that misbehaves again and again is restarted more and more slowly."""
    for what in (*ENDS, *LIES, TALKS_WITHOUT_END, ANSWERS_TWICE):
        write_victim(repository, model_name(what), code=ROGUE)
    write_victim(repository, "honest")
    with serving(repository, flags=("--model-load-thread-count=8",)) as server:
        yield server


def misbehave(server, repository, what: str, deed: str) -> str:
    """Let a model do something, while others wait for it; returns why the process ended."""
    name = model_name(what)
    with Asker(server) as asker:
        first = asker.ask(name, deed)
        wait_until((repository / name / "begun").exists, "the model has not begun")
        others = [asker.ask(name, f"echo {n}") for n in range(3)]
        assert told(server, "honest", "echo unharmed") == "unharmed"
        reply = first.result()
        answers = [other.result() for other in others]
    assert reply.status == 500
    ended = re.fullmatch(rf"Stub process '{name}_0' is not healthy\. The process (.*)\.", reply.error)
    assert ended, reply.error
    assert {answer.status for answer in answers} == {200}
    assert told(server, name, "echo again") == "again"
    server.wait_until(f"/v2/models/{name}/ready", 200)
    return ended[1]


@pytest.mark.parametrize("what", ENDS)
def test_one_that_hangs_up(server, repository, what):
    assert misbehave(server, repository, what, ENDS[what]) == "closed its connection to the host and was killed"


@pytest.mark.parametrize("what", one_in(3, LIES))
def test_one_that_lies(server, repository, what):
    cause = misbehave(server, repository, what, LIES[what])
    assert re.fullmatch(r"broke the protocol between host and model process \(.+\) and was killed", cause), cause
    assert ("does not decode" in cause) is (what in UNDECODABLE), cause
    assert f"stub process '{model_name(what)}_0' broke the protocol and is being killed" in server.output


def test_answers_that_nobody_asked_for(server):
    """The first answer counts as the model's; for the second there is no request, or none that the model has seen."""
    reply = ask(server, model_name(ANSWERS_TWICE), f"say [{result()}, {result()}]")
    assert reply.status == 200
    server.wait_for("stub process 'answers_twice_0' broke the protocol and is being killed")
    assert told(server, model_name(ANSWERS_TWICE), "echo again") == "again"


def test_one_that_talks_without_end_leaves_others_their_turn(server):
    """It does nothing wrong, only too much: it is not killed, and whoever asks another model hardly notices."""
    name = model_name(TALKS_WITHOUT_END)
    with Asker(server) as asker:
        pid = int(told(server, name, "pid"))
        flood = asker.ask(name, f"flood_with [[{FREE_INPUT}, []]]")
        server.wait_for(f"{name}_0/output.*on and on")  # begun: else the next process would execute it
        for n in range(20):
            assert told(server, "honest", f"echo {n}") == str(n)
        assert not flood.done()
        os.kill(pid, signal.SIGKILL)
        assert flood.result().status == 500
    assert told(server, name, "echo again") == "again"
