"""The steps of an ensemble that follow one of them in this process, in the thread that has run that one.

Like a call of a neighbour, a step runs here only if nothing about it is unusual. Otherwise the host gets the tensors
that there are so far, and goes on from there, as it does without a group.
"""

import time
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Set

from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor
from pybackend_stub.channel import MOST_TEXT
from pybackend_stub.model_calls import ModelCalls
from pybackend_stub.neighbours import Lent, LocalRequest, Neighbour, Neighbours, RunningCall, lies_in, tensor_of
from pybackend_stub.results import AnswerQueue, ResultWriter
from pybackend_wire.host_messages import NextStep, Program, Then
from pybackend_wire.messages import TensorPlace
from pybackend_wire.stub_messages import Followed

_LOOK_NS = 1_000_000
"""How often to look whether the client has left: a look costs a system call."""

_NOTHING: Any = (None, (), None)
"""The result of a step of which the host needs nothing."""

_SEQUENCE = frozenset({"sequence_id", "sequence_start", "sequence_end"})
"""The parameters of a response by which a step names the sequence for those that follow: the host does that."""


class StepRunner:
    """The steps that may follow one execution of a model.

    Attributes:
        has_left: the model that was executed is free for others.

    Args:
        tail: of the frame with the message.
        first: the model that is executed.
        calls: the ways by which calls of the others reach the host.
    """

    def __init__(
        self,
        then: Then,
        tail: bytearray,
        first: Neighbour,
        neighbours: Neighbours,
        calls: ModelCalls,
        answers: AnswerQueue,
        results: ResultWriter,
    ) -> None:
        self._program = program = Program(*then.program)
        self._steps = [NextStep(*step) for step in program.steps]
        self._first = first
        self._neighbours = neighbours
        self._calls = calls
        self._answers = answers
        self._results = results
        self._lent = Lent()
        self._is_given = lambda _data: False
        self.has_left = False
        self._left_ns, self._looked_ns = 0, time.monotonic_ns()
        self._layouts: List[TensorPlace] = []
        self._responses: List[InferenceResponse] = []
        self._tensors: Dict[str, Tensor] = {}
        """Those that exist, by the ensemble's names for them."""
        self._uses: Dict[str, int] = {}
        for step in self._steps:
            for _, tensor in step.inputs:
                self._uses[tensor] = self._uses.get(tensor, 0) + 1
        for name, datatype, shape, _, offset, nbytes in then.tensors:
            self._tensors[name] = tensor_of(name, datatype, shape, memoryview(tail)[offset : offset + nbytes])

    def begin(self, requests: "Sequence[InferenceRequest]") -> None:
        """Before the execution, keep the inputs that later steps use, too: the model gets copies, or views to read."""
        wanted = dict(self._program.inputs)
        large = [tensor._data for request in requests for tensor in request._inputs if type(tensor._data) is memoryview]
        self._is_given = lambda data: any(lies_in(data, each) for each in large)
        for request in requests if self._first.has_run else ():
            for place, tensor in enumerate(request._inputs):
                name = wanted.get(tensor._name)
                if name is not None:
                    self._tensors[name] = tensor
                    request._inputs[place] = self._lent.lend(tensor, self._first.copies_inputs)

    def follow(
        self, execution: int, requests: "Sequence[InferenceRequest]", box: "List[Optional[InferenceResponse]]"
    ) -> "Sequence[Optional[InferenceResponse]]":
        """Run the steps, as far as possible.

        Returns the response of the first one, with what the host still needs of it.

        The response comes in a box: no variable of the caller's may refer to it.
        """
        self._left_ns = time.monotonic_ns()
        if not box or box[0] is None or box[0]._error is not None or not self._first.has_run:
            return box
        self.has_left = True
        self._first.busy.release()  # it may run again, perhaps as one of these steps
        request = requests[0]
        names = request._requested_output_names
        try:
            response, self._layouts = self._first.received(box, names, self._is_given)  # type: ignore[arg-type]  # not None
        except Exception as error:  # noqa: BLE001  as below
            return [self._first.broken(error)]
        responses, done = [response], self._responses
        outputs = [self._program.outputs]
        while response._error is None:
            self._take(response, outputs[-1])
            is_last = len(done) == len(self._steps) or not _SEQUENCE.isdisjoint(response._parameters or ())
            following = None if is_last else self._run(request, execution)
            if following is None:
                break
            outputs.append(self._steps[len(done)].outputs)
            responses.append(following)
            done.append(following)
            response = following
        needed = set() if response._error is not None else self._needed() & self._tensors.keys()
        for each, names_of in zip(responses, outputs):
            each._output_tensors = [self._tensors[name] for _, name in names_of if name in needed]
        self._tensors.clear()
        return responses[:1]

    def tell(self, execution: int, answers: AnswerQueue) -> None:
        """Tell the host what has followed; the result of the first step comes next."""
        if self._responses:
            results: List[Any] = []
            for response in self._responses:
                results.append(self._written(response, answers.tail))
                if results[-1][0] is not None:  # what follows an error has not happened
                    break
            answers.add(Followed(execution, self._left_ns, self._layouts, results))

    def _written(self, response: InferenceResponse, tail: Any) -> Any:
        if not response._output_tensors and response._error is None:
            return _NOTHING
        if response._parameters:  # an ensemble reads these only
            response._parameters = {name: response._parameters[name] for name in _SEQUENCE & set(response._parameters)}
        names = [tensor._name for tensor in response._output_tensors]
        return self._results.response(response, names, tail, MOST_TEXT // 4)

    def _take(self, response: InferenceResponse, outputs: "Sequence[Sequence[str]]") -> None:
        made = {tensor._name: tensor for tensor in reversed(response._output_tensors)}  # the first of a name counts
        response._output_tensors = []  # what nobody needs any more goes as soon as possible
        for output, name in outputs:
            if output in made:
                self._tensors[name] = made[output]

    def _needed(self) -> "Set[str]":
        """The tensors that the host, or steps that have not run, need."""
        left = self._steps[len(self._responses) :]
        return {*self._program.kept, *(name for step in left for _, name in step.inputs)}

    def _drop_unneeded(self, step: NextStep) -> None:
        """Let go of what only this step still needed."""
        uses = self._uses
        for _, name in step.inputs:
            uses[name] -= 1
            if not uses[name] and name not in self._program.kept:
                del self._tensors[name]

    def _run(self, first: InferenceRequest, execution: int) -> "Optional[InferenceResponse]":
        """Run the next step; None if the host must do that."""
        step = self._steps[len(self._responses)]
        neighbour = self._neighbours.find(step.member)
        inputs = [(name, self._tensors.get(tensor)) for name, tensor in step.inputs]
        is_cancelled = partial(self._first.runtime.is_cancelled, first)
        now_ns = time.monotonic_ns()
        if now_ns - self._looked_ns >= _LOOK_NS:
            self._looked_ns = now_ns
            if is_cancelled():
                return None
        if neighbour is None:
            return None
        request = InferenceRequest._from_wire(
            first._request_id,
            first._correlation_id,
            [
                tensor_of(name, tensor._datatype, tensor._shape, tensor._data)
                for name, tensor in inputs
                if tensor is not None
            ],
            [output for output, _ in step.outputs],
            first._flags,
            first._timeout,
            first._parameters,
            None,
            first._priority,
        )
        batch_size = neighbour.fits(request) if len(request._inputs) == len(inputs) else 0
        if not batch_size or not neighbour.busy.acquire(False):
            return None
        if not neighbour.can_follow:
            neighbour.busy.release()
            return None
        self._drop_unneeded(step)
        key = LocalRequest(is_cancelled)
        held = (neighbour.instance_name,)
        try:
            return neighbour.serve(request, batch_size, RunningCall(self._calls, execution, held, self._answers, key))
        except Exception as error:  # noqa: BLE001  not the model's: the request is answered, and the process goes on
            return neighbour.broken(error)
