"""The steps of an ensemble as a plan has them."""

from collections.abc import Mapping, Sequence

from pybackend.model.model import Model
from pybackend.modelconfig.ensemble import Chain, EnsembleStep
from pybackend.recurring import Recurring

ONCE: Chain = ()
"""The chain of tensors and steps that occur once per request."""

MOST_LAYOUTS = 64
"""Number of layouts of inputs to keep for each step; clients may choose the sizes of tensors."""

Layout = tuple[object, ...]
"""Datatype, shape and size in bytes of each input of a step."""


class PlannedStep:
    """A step, and the version that runs it.

    Attributes:
        number: position in the configuration.
        inputs: the model's input name and the ensemble's tensor name, one pair for each input.
        optional: the inputs that a request to the model may leave out, by the model's names.
        outputs: ensemble tensor by model output; only needed outputs.
        requested: the model names of these outputs.
        dispensable: those of them that later steps alone read, all of which can do without.
        batched: True if the model's tensors have a batch dimension.
        chain: the streams within which the step runs.
        streams: True if the step's model is decoupled.
        any_version: True if the step names no version of its model.
        needs: the names of the ensemble's tensors in ``inputs``.
        followers: the steps that use its outputs.
        signature: the model's, for which ``batch_sizes`` holds.
        batch_sizes: the batch size of requests that have all inputs, by their layout. One such request was validated,
            and nothing in the next but the bytes of numbers can differ.
    """

    def __init__(self, number: int, step: EnsembleStep, model: Model, chain: Chain, outputs: Mapping[str, str]) -> None:
        self.number = number
        self.model = model
        self.inputs = tuple(step.inputs.items())
        self.optional = frozenset(each.name for each in model.signature.inputs.values() if each.optional)
        self.outputs = outputs
        self.requested = tuple(outputs)
        self.dispensable: frozenset[str] = frozenset()
        self.batched = model.signature.max_batch_size > 0
        self.chain = chain
        self.streams = model.config.decoupled
        self.any_version = not step.model_version
        self.followers: Sequence[PlannedStep] = ()
        self.needs = frozenset(step.inputs.values())
        self.signature = model.signature
        self.batch_sizes: Recurring[Layout, int] = Recurring(MOST_LAYOUTS)

    def can_do_without(self, tensor: str) -> bool:
        """Whether it runs if a tensor of the ensemble is missing."""
        return all(name in self.optional for name, read in self.inputs if read == tensor)

    def remember(self, layout: Layout, batch_size: int) -> None:
        """Keep the batch size of a request that the model has accepted."""
        if self.model.signature is not self.signature:
            self.batch_sizes.clear()
            self.signature = self.model.signature
        self.batch_sizes.remember(layout, batch_size)
