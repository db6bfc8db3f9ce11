"""Models that run other models, and models that answer in streams, as a request tells them; all of them can be killed."""

import json
from pathlib import Path

from tests.faults.victims import CONFIG, VICTIM, told, write_victim
from tests.support.gates import GATE
from tests.support.repositories import write_model
from tests.support.server import ServerProcess

_CALLS = """
import asyncio, concurrent.futures, threading

def call(argument):
    model, _, text = argument.partition(" ")
    tensor = pb_utils.Tensor("COMMAND", np.array([text], dtype=object))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=["OUT"])

def outcome(response):
    if response.has_error():
        return "error %d: %s" % (response.error().code(), response.error().message())
    tensors = response.output_tensors()
    return tensors[0].as_numpy()[0].decode() if tensors else "end"
"""

CALLER = (
    _CALLS
    + VICTIM
    + """
    def call(self, argument):
        return outcome(call(argument).exec())

    def call_later(self, argument):
        name, _, argument = argument.partition(" ")
        self.gate(name)
        return self.call(argument)

    def call_async(self, argument):
        async def run():
            return await call(argument).async_exec()
        return outcome(asyncio.run(run()))

    def stream(self, argument):
        return json.dumps([outcome(response) for response in call(argument).exec(decoupled=True)])

    def stream_async(self, argument):
        async def run():
            return await call(argument).async_exec(decoupled=True)
        return json.dumps([outcome(response) for response in asyncio.run(run())])

    def many(self, argument):
        count, _, argument = argument.partition(" ")
        async def run():
            return await asyncio.gather(*(call(argument.replace("N", str(n))).async_exec() for n in range(int(count))))
        return json.dumps([outcome(response) for response in asyncio.run(run())])

    def threads(self, argument):
        count, _, argument = argument.partition(" ")
        calls = [call(argument.replace("N", str(n))) for n in range(int(count))]
        with concurrent.futures.ThreadPoolExecutor(int(count)) as pool:
            return json.dumps([outcome(response) for response in pool.map(lambda each: each.exec(), calls)])

    def streams(self, argument):
        count, _, argument = argument.partition(" ")
        iterators = [call(argument.replace("N", str(n))).exec(decoupled=True) for n in range(int(count))]
        return json.dumps([[outcome(response) for response in iterator] for iterator in iterators])

    def sizes(self, argument):
        return json.dumps([len(outcome(response)) for response in call(argument).exec(decoupled=True)])

    def drop(self, argument):
        count, _, argument = argument.partition(" ")
        for _ in range(int(count)):
            next(call(argument).exec(decoupled=True))
        return "dropped"
"""
)
"""A victim with more commands: ``call MODEL TEXT``, ``call_later GATE MODEL TEXT``, ``call_async``, ``stream`` (a
list), ``stream_async``, ``streams COUNT MODEL TEXT``, ``many`` and ``threads`` (all at once; ``N`` in the text is each
call's number), ``sizes`` (of a stream's responses), ``drop COUNT MODEL TEXT`` (streams of which only the first response
is looked at)."""

STREAMER = (
    GATE
    + """
import threading

class TritonPythonModel:
    def initialize(self, args):
        self.directory = args["model_repository"]
        with open(os.path.join(self.directory, "starts"), "a") as starts:
            starts.write("%d %r\\n" % (os.getpid(), time.monotonic()))

    def execute(self, requests):
        for request in requests:
            command = request.inputs()[0].as_numpy().item().decode()
            threading.Thread(target=self.answer, args=(request.get_response_sender(), command)).start()

    def answer(self, sender, command):
        name, _, argument = command.partition(" ")
        getattr(self, name)(sender, argument)

    def say(self, sender, text, flags=0):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([str(text)], dtype=object))]), flags)

    def echo(self, sender, text):
        self.say(sender, text, flags=1)

    def count(self, sender, argument):
        number, nbytes, name = argument.split()
        for n in range(int(number)):
            self.say(sender, ("%d " % n).ljust(int(nbytes)))
            if n % 100 == 99:
                mark(self.directory, name)
        sender.send(flags=1)

    def gate(self, sender, name):
        self.say(sender, "before")
        pass_gate(self.directory, name)
        self.say(sender, "after", flags=1)

    def until_cancelled(self, sender, name):
        self.say(sender, "here")
        mark(self.directory, name + ".begun")
        while not sender.is_cancelled():
            time.sleep(0.005)
        mark(self.directory, name + ".cancelled")
        sender.send(flags=1)

    def late(self, sender, name):
        self.say(sender, "the end", flags=1)
        pass_gate(self.directory, name)
        try:
            self.say(sender, "too late")
        except pb_utils.TritonModelException as error:
            with open(os.path.join(self.directory, name + ".refused"), "w") as file:
                file.write(str(error))

    def crowd(self, sender, argument):
        threads, count = map(int, argument.split())
        gate = threading.Barrier(threads)
        def run(number):
            gate.wait()
            for n in range(count):
                self.say(sender, "%d %d" % (number, n))
        running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        sender.send(flags=1)
"""
)
"""A decoupled model whose threads answer after ``execute`` has returned, as told: ``echo TEXT``,
``count NUMBER BYTES NAME`` (a mark for every hundred), ``gate NAME``, ``until_cancelled NAME``, ``late NAME``,
``crowd THREADS COUNT``."""


def write_caller(repository: Path, name: str, extra: str = "") -> Path:
    """Write a model that calls others and return its directory."""
    return write_victim(repository, name, extra, CALLER)


def write_streamer(repository: Path, name: str, extra: str = "") -> Path:
    """Write a decoupled model and return its directory."""
    return write_model(repository, name, STREAMER, CONFIG + "model_transaction_policy { decoupled: true }\n" + extra)


def listed(server: ServerProcess, model: str, text: str) -> list:
    """Send a command whose result is a list."""
    return json.loads(told(server, model, text))
