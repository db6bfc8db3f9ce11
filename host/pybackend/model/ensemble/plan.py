"""Plans how an ensemble produces the outputs that a request wants: the steps to run, and the uses of each tensor.

Each plan is made once per change of the parts and set of outputs; requests only follow it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain as chained

from pybackend.model.ensemble.path import path_from
from pybackend.model.ensemble.planned_step import ONCE, PlannedStep
from pybackend.model.model import Model
from pybackend.modelconfig.ensemble import Chain, EnsembleStep, needed_tensors, stream_chains


class EnsemblePlan:
    """The plan for a set of outputs.

    Attributes:
        wanted: the ensemble's outputs, in response order.
        first: the steps that use nothing but the request's own inputs.
        paths: the steps that may follow one in its process, by that one.
        leaves: the chains at which responses are made: chains of wanted outputs that no longer wanted chain extends.
        may_wait: numbers of the streaming steps that may be paused until the following steps have caught up. Excludes
            those that share a model with a following step, which would then wait forever.
    """

    def __init__(self, steps: Sequence[EnsembleStep], models: Sequence[Model], wanted: tuple[str, ...]) -> None:
        self.wanted = wanted
        self._chains = stream_chains(steps, [model.config.decoupled for model in models])
        needed = needed_tensors(steps, wanted)
        self._steps: dict[Chain, list[PlannedStep]] = defaultdict(list)
        self._consumers: dict[str, list[PlannedStep]] = defaultdict(list)
        for number, (step, model) in enumerate(zip(steps, models, strict=True)):
            outputs = {name: tensor for name, tensor in step.outputs.items() if tensor in needed}
            if outputs:
                in_chain = max((self.chain(tensor) for tensor in step.inputs.values()), key=len)
                planned = PlannedStep(number, step, model, in_chain, outputs)
                self._steps[in_chain].append(planned)
                for tensor in dict.fromkeys(step.inputs.values()):
                    self._consumers[tensor].append(planned)
        made = {tensor for planned in self._all_steps() for tensor in planned.outputs.values()}
        self.first = [planned for planned in self.steps(ONCE) if made.isdisjoint(planned.needs)]
        for planned in self._all_steps():
            consumers = (consumer for tensor in planned.outputs.values() for consumer in self.consumers(tensor))
            planned.followers = tuple(dict.fromkeys(consumers))
            planned.dispensable = frozenset(
                name
                for name, tensor in planned.outputs.items()
                if tensor not in wanted and all(reader.can_do_without(tensor) for reader in self.consumers(tensor))
            )
        paths = ((planned, path_from(planned, wanted)) for planned in self._all_steps())
        self.paths = {planned: path for planned, path in paths if path is not None}
        ends = {self.chain(tensor) for tensor in wanted}
        self.leaves = {end for end in ends if not any(end != other and other[: len(end)] == end for other in ends)}
        self._uses = self._count_uses()
        self.may_wait = {
            step.number
            for step in self._all_steps()
            if step.streams and step.model.runs_in.isdisjoint(self._models_following(step))
        }

    def _all_steps(self) -> Iterator[PlannedStep]:
        return chained.from_iterable(self._steps.values())

    def _models_following(self, step: PlannedStep) -> Iterator[Model]:
        for chain, following in self._steps.items():
            if step.number in chain:
                for each in following:
                    yield from each.model.runs_in

    def chain(self, tensor: str) -> Chain:
        """The streams that a tensor has come through."""
        return self._chains.get(tensor, ONCE)

    def steps(self, chain: Chain) -> Sequence[PlannedStep]:
        """The steps that run once per response of these streams, in configured order."""
        return self._steps.get(chain, ())

    def consumers(self, tensor: str) -> Sequence[PlannedStep]:
        return self._consumers.get(tensor, ())

    def uses(self, tensor: str) -> int:
        """The number of reads of a tensor; a step within a later stream counts once, however often it runs."""
        return self._uses[tensor]

    def _count_uses(self) -> Counter[str]:
        uses = Counter(self.wanted)
        for steps in self._steps.values():
            uses.update(tensor for step in steps for _, tensor in step.inputs)
        return uses
