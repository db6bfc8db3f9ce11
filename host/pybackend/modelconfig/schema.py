"""A model's effective configuration in typed form. Built from its document, which stays the single source of truth.

Besides the configuration itself: its batching, its instances and the names by which models are known.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pybackend_wire.dtypes import BY_CONFIG_NAME

ENSEMBLE_PLATFORM = "ensemble"
"""The ``platform`` of ensembles."""


class Scheduling(StrEnum):
    """How requests reach executions; named after the one-of in config.pbtxt."""

    DEFAULT = "default"
    DYNAMIC_BATCHING = "dynamic_batching"
    SEQUENCE_BATCHING = "sequence_batching"
    ENSEMBLE = "ensemble_scheduling"


class InstanceKind(StrEnum):
    """The device kind of an instance group, by its name in config.pbtxt."""

    AUTO = "KIND_AUTO"
    GPU = "KIND_GPU"
    CPU = "KIND_CPU"
    MODEL = "KIND_MODEL"


class VersionChoice(StrEnum):
    """The three version policies."""

    LATEST = "latest"
    ALL = "all"
    SPECIFIC = "specific"


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which version directories are served."""

    choice: VersionChoice = VersionChoice.LATEST
    num_versions: int = 1  # how many of the highest versions, for ``LATEST``
    versions: tuple[int, ...] = ()  # the configured versions, for ``SPECIFIC``


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """One configured input or output."""

    name: str  # as configured, ``""`` if missing
    datatype: str  # wire name, e.g. ``FP32``; ``""`` if missing.
    dims: tuple[int, ...]  # shape without the batch dimension; -1 is any size
    # the shape that the model sees instead of ``dims``; None if they are the same
    reshape: tuple[int, ...] | None = None
    optional: bool = False  # an input that a request may omit
    allow_ragged_batch: bool = False  # an input whose shape may differ between the requests of a batch
    label_filename: str = ""  # file with one label per element of an output, ``""`` for none


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances that share a kind and a device choice."""

    name: str  # the group's name; its instances append ``_<n>``
    kind: InstanceKind  # never ``AUTO`` in a finished configuration
    count: int  # number of instances; for ``GPU``, number per device
    gpus: tuple[int, ...] = ()  # device numbers, for ``GPU``
    passive: bool = False  # created, but never given a request
    host_policy: str = ""  # name of the host policy, ``""`` for the default of the kind


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's configuration. Immutable by convention: ``document`` is never modified in place."""

    name: str
    platform: str  # framework hint, usually ``""``
    backend: str  # ``python`` once loaded
    runtime: str
    version_policy: VersionPolicy
    max_batch_size: int  # 0 if requests carry no batch dimension
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    instance_groups: tuple[InstanceGroup, ...]  # in configured order; at least one once finished
    default_model_filename: str  # path of the model file inside a version directory
    parameters: Mapping[str, str]  # text by key, for models and for the backend
    metric_tags: Mapping[str, str]  # extra metric labels
    decoupled: bool  # the model may send any number of responses
    scheduling: Scheduling
    response_cache_enabled: bool  # responses may come from a cache
    document: Mapping[str, Any]  # the complete configuration as JSON data, the source of all fields above
    source: str
    warnings: tuple[str, ...] = ()  # one sentence for each setting without effect, for the log

    @property
    def is_ensemble(self) -> bool:
        """True if the model is, or claims to be, an ensemble."""
        return self.scheduling is Scheduling.ENSEMBLE or self.platform == ENSEMBLE_PLATFORM

    def to_json(self) -> str:
        """The document as JSON text, passed to models as ``args["model_config"]``."""
        return json.dumps(self.document, separators=(",", ":"))

    def with_warnings(self, warnings: tuple[str, ...]) -> ModelConfig:
        return replace(self, warnings=warnings)


def from_document(document: Mapping[str, Any], source: str) -> ModelConfig:
    """The typed configuration of a complete document, as returned by the parser. The document is kept, not copied."""
    return ModelConfig(
        name=document["name"],
        platform=document["platform"],
        backend=document["backend"],
        runtime=document.get("runtime", ""),
        version_policy=_version_policy(document.get("version_policy", {})),
        max_batch_size=document["max_batch_size"],
        inputs=tuple(_tensor(tensor) for tensor in document["input"]),
        outputs=tuple(_tensor(tensor) for tensor in document["output"]),
        instance_groups=tuple(_instance_group(group) for group in document["instance_group"]),
        default_model_filename=document["default_model_filename"],
        parameters={key: value["string_value"] for key, value in document["parameters"].items()},
        metric_tags=document["metric_tags"],
        decoupled=document.get("model_transaction_policy", {}).get("decoupled", False),
        scheduling=scheduling_of(document),
        response_cache_enabled=document.get("response_cache", {}).get("enable", False),
        document=document,
        source=source,
    )


def scheduling_of(document: Mapping[str, Any]) -> Scheduling:
    """The scheduler that a document chooses."""
    return next((choice for choice in Scheduling if choice in document), Scheduling.DEFAULT)


def _version_policy(policy: Mapping[str, Any]) -> VersionPolicy:
    if VersionChoice.SPECIFIC in policy:
        return VersionPolicy(VersionChoice.SPECIFIC, versions=tuple(policy["specific"]["versions"]))
    if VersionChoice.ALL in policy:
        return VersionPolicy(VersionChoice.ALL)
    return VersionPolicy(VersionChoice.LATEST, policy.get("latest", {}).get("num_versions", 0) or 1)


def _tensor(tensor: Mapping[str, Any]) -> TensorConfig:
    datatype = BY_CONFIG_NAME.get(tensor["data_type"])
    return TensorConfig(
        name=tensor["name"],
        datatype="" if datatype is None else datatype.name,
        dims=tuple(tensor["dims"]),
        reshape=tuple(tensor["reshape"]["shape"]) if "reshape" in tensor else None,
        optional=tensor.get("optional", False),
        allow_ragged_batch=tensor.get("allow_ragged_batch", False),
        label_filename=tensor.get("label_filename", ""),
    )


def _instance_group(group: Mapping[str, Any]) -> InstanceGroup:
    return InstanceGroup(
        name=group["name"],
        kind=InstanceKind(group["kind"]),
        count=group["count"],
        gpus=tuple(group["gpus"]),
        passive=group["passive"],
        host_policy=group["host_policy"],
    )


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long, and in what number, requests may wait."""

    delays: bool = False  # True if an expired request lets others overtake it; False if it is refused
    timeout_us: int = 0  # how long a request may wait; 0 for no limit
    allows_override: bool = False  # a request may set a shorter timeout
    max_queue_size: int = 0  # number of requests that may wait; 0 for no limit


@dataclass(frozen=True, slots=True)
class BatchingConfig:
    """How requests form batches."""

    max_batch_size: int  # the model's, at least 1
    preferred_batch_sizes: frozenset[int] = frozenset()  # sizes at which a batch is sent at once
    max_queue_delay_us: int = 0  # how long an incomplete batch waits for more, counted from its oldest request
    preserve_ordering: bool = False  # responses leave in the order of the requests
    priority_levels: int = 0  # 1 is the highest; 0 for no priorities
    default_priority: int = 0  # level of requests that name none
    default_policy: QueuePolicy = QueuePolicy()  # for levels without a policy
    policies: Mapping[int, QueuePolicy] | None = None  # by level

    def policy(self, level: int) -> QueuePolicy:
        return (self.policies or {}).get(level, self.default_policy)


def batching_of(document: Mapping[str, Any]) -> BatchingConfig:
    """The batching that a complete document configures."""
    batching = document["dynamic_batching"]
    return BatchingConfig(
        max_batch_size=max(1, document["max_batch_size"]),
        preferred_batch_sizes=frozenset(batching["preferred_batch_size"]),
        max_queue_delay_us=batching["max_queue_delay_microseconds"],
        preserve_ordering=batching["preserve_ordering"],
        priority_levels=batching["priority_levels"],
        default_priority=batching["default_priority_level"],
        default_policy=_policy(batching.get("default_queue_policy", {})),
        policies={int(level): _policy(policy) for level, policy in batching["priority_queue_policy"].items()},
    )


def heeds_timeouts(config: ModelConfig) -> bool:
    """Whether the time-out of a request can have an effect in the model's queue; the configuration is complete."""
    if config.scheduling is Scheduling.SEQUENCE_BATCHING:
        return True
    if "dynamic_batching" not in config.document:
        return False
    batching = batching_of(config.document)
    policies = (batching.default_policy, *(batching.policies or {}).values())
    return any(policy.allows_override and policy.timeout_us for policy in policies)


def _policy(policy: Mapping[str, Any]) -> QueuePolicy:
    return QueuePolicy(
        delays=policy.get("timeout_action") == "DELAY",
        timeout_us=policy.get("default_timeout_microseconds", 0),
        allows_override=policy.get("allow_timeout_override", False),
        max_queue_size=policy.get("max_queue_size", 0),
    )


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Specification of one instance."""

    name: str  # ``<group>_<n>``; instances of one group on several GPUs share a name
    group: str
    kind: str  # ``CPU``, ``GPU`` or ``MODEL``, as passed to models
    device_id: int  # the GPU's number; 0 for the other kinds
    passive: bool  # created, but never given a request
    host_policy: str  # name of the host policy, ``""`` for the default of the kind

    @property
    def policy_name(self) -> str:
        """The host policy that applies: the configured one, or the kind's default."""
        return self.host_policy or (f"gpu_{self.device_id}" if self.kind == "GPU" else self.kind.lower())


def instances(config: ModelConfig) -> list[InstanceSpec]:
    """All instances of a finished configuration, in configured order."""
    return [
        InstanceSpec(
            name=f"{group.name}_{index}",
            group=group.name,
            kind=group.kind.removeprefix("KIND_"),
            device_id=device_id,
            passive=group.passive,
            host_policy=group.host_policy,
        )
        for group in config.instance_groups
        for index in range(group.count)
        for device_id in (group.gpus if group.kind is InstanceKind.GPU else (0,))
    ]


Resource = tuple[str, int | None]
"""Name and device of a resource; None for one that all devices share."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The requirements of one instance."""

    needs: dict[Resource, int]  # how many of each resource an execution takes
    priority: int  # 1 is the highest; 2 gets half as many executions as 1 while both wait


def rate_limit_of(config: ModelConfig, group_name: str, device_id: int) -> RateLimit | None:
    """The requirements in the ``rate_limiter`` of an instance's group; None if it has no resources."""
    for group in config.document["instance_group"]:
        limiter = group.get("rate_limiter")
        if group["name"] == group_name and limiter and limiter["resources"]:
            needs: dict[Resource, int] = {}
            for each in limiter["resources"]:
                resource = (each["name"], None if each["global"] else device_id)
                needs[resource] = needs.get(resource, 0) + each["count"]
            return RateLimit(needs, limiter["priority"] or 1)
    return None


NAMESPACE_SEPARATOR = "::"
"""Between the namespace, which is its repository, and the model's name on a server with ``--model-namespacing=true``.
"""


def full_name(namespace: str, name: str) -> str:
    """The full name of a model; its name if the namespace is ``""``."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}" if namespace else name
