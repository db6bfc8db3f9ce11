"""The rules for the traffic of a model's versions: their form, and parameters ``TRAFFIC_WEIGHTS``, ``TRAFFIC_SHADOW``."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pybackend.errors import ModelConfigError
from pybackend.modelconfig.options import read_option
from pybackend.modelconfig.schema import ModelConfig, Scheduling

WEIGHTS, SHADOW = "TRAFFIC_WEIGHTS", "TRAFFIC_SHADOW"
TRAFFIC_KEYS = (WEIGHTS, SHADOW)

LARGEST_WEIGHT = 1_000_000
_MOST_DIGITS = 19

WEIGHTS_FORM = "a list of version=weight such as 1=90,2=10, with whole weights of which one is above 0"
SHADOW_FORM = "version=percent such as 3=5, with a percentage above 0 and up to 100"


@dataclass(frozen=True)
class Shadow:
    """The version that gets copies of requests."""

    version: int
    percent: float  # the share of the requests, above 0 and up to 100


@dataclass(frozen=True)
class TrafficRules:
    """The rules for requests that name no version."""

    weights: Mapping[int, int]  # by version, at least one of them positive; empty if the newest version answers
    shadow: Shadow | None = None  # the version that gets copies; None if there is none


@dataclass(frozen=True)
class TrafficChange:
    """A change of the rules."""

    weights: Mapping[int, int] | None = None  # the new weights, empty for none, None to keep the present ones
    shadow: Shadow | None = None  # the new shadow, None for none; counts only if ``sets_shadow``
    sets_shadow: bool = False  # False to keep the present shadow
    reset: bool = False  # use the rules of the configuration again; the other attributes do not count


@dataclass(frozen=True)
class TrafficReport:
    """The rules of a model, and their effect."""

    name: str
    rules: TrafficRules
    source: str  # ``default``, ``configuration`` or ``request``: where they are from
    shares: Mapping[str, float]  # the percentage of the requests without a version that each version answers now


def weights_of(text: str) -> Mapping[int, int]:
    """Read ``1=90,2=10``. Raises ValueError: the form is wrong."""
    weights: dict[int, int] = {}
    for pair in text.split(","):
        version, _, weight = pair.strip().removesuffix("%").partition("=")
        number = _natural(version)
        if number in weights:
            raise ValueError(text)
        weights[number] = _natural(weight)
    if max(weights.values()) > LARGEST_WEIGHT or not any(weights.values()):
        raise ValueError(text)
    return weights


def shadow_of(text: str) -> Shadow:
    """Read ``3=5`` or ``3=0.5%``. Raises ValueError: the form is wrong."""
    version, _, percent = text.strip().removesuffix("%").partition("=")
    found = Shadow(_natural(version), float(percent))
    if not 0 < found.percent <= 100:  # false for NaN as well
        raise ValueError(text)
    return found


def _natural(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS):
        raise ValueError(text)
    return int(text)


def configured_traffic(config: ModelConfig, served: Collection[int]) -> TrafficRules | None:
    """The rules in a model's parameters; None if there are none."""
    if config.parameters.keys().isdisjoint(TRAFFIC_KEYS):
        return None
    rules = TrafficRules(
        weights=read_option(config, WEIGHTS, {}, weights_of, WEIGHTS_FORM),
        shadow=read_option(config, SHADOW, None, shadow_of, SHADOW_FORM),
    )
    problem = traffic_problem(rules, config, served)
    if problem:
        raise ModelConfigError(f"model '{config.name}': {problem} ({config.source})")
    return rules


def traffic_problem(rules: TrafficRules, config: ModelConfig, served: Collection[int]) -> str:
    """The reason why these rules are impossible for a model; ``""`` if they are possible."""
    if config.is_ensemble:
        return "the versions of an ensemble are equal: give weights and a shadow to the models of its steps"
    versions = ", ".join(map(str, sorted(served)))
    positive = {version for version, weight in rules.weights.items() if weight}
    if positive and positive.isdisjoint(served):
        return f"no version with a weight is served, only {versions}: change the weights, or version_policy"
    shadow = rules.shadow
    if shadow is None:
        return ""
    if shadow.version in positive:
        return f"version {shadow.version} has a weight and is the shadow, which answers no request: choose one of them"
    if not set(served) - {shadow.version}:
        return f"version {shadow.version} is the shadow, and no other version is served that could answer"
    if config.decoupled:
        return "a decoupled model cannot have a shadow, because its requests have any number of responses"
    if config.scheduling is Scheduling.SEQUENCE_BATCHING:
        return "a model with sequence_batching cannot have a shadow, which would get parts of sequences"
    return ""
