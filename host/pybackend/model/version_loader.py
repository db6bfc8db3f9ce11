"""Loads a version: the first process lets the model complete its configuration, then all instances are initialised."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pybackend.apart import apart
from pybackend.instance.model_instance import ModelInstance
from pybackend.instance.output_check import OutputWarnings
from pybackend.instance.settings import READINESS_LIMIT_S, InstanceSettings
from pybackend.model.cached_answers import version_digest, warn_without_cache
from pybackend.model.host import ModelHost
from pybackend.model.processes import ModelProcesses
from pybackend.model.source import ModelSource
from pybackend.modelconfig.known_backends import known_backend
from pybackend.modelconfig.labels import read_labels
from pybackend.modelconfig.loader import check_instances, finish_config, on_cpu, planned_instances
from pybackend.modelconfig.normalisation import with_scheduling
from pybackend.modelconfig.options import MemoryLimit, ModelOptions, options_of
from pybackend.modelconfig.schema import (
    InstanceSpec,
    ModelConfig,
    RateLimit,
    Scheduling,
    from_document,
    instances,
    rate_limit_of,
)
from pybackend.modelconfig.sequences import hidden_outputs, is_iterative, sequences_of
from pybackend.modelconfig.signature import ExtrasOf, ModelSignature, signature_of
from pybackend.modelconfig.validation import validate
from pybackend.modelconfig.warmup import WarmupSample, warmup_samples
from pybackend.scheduler.sequence_inputs import ImplicitStates
from pybackend_wire.host_messages import Initialize, InputSignature, Signature

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompletedVersion:
    """A version whose model has completed its configuration.

    The model's own code has chosen some of it: no rights are read from here, but from
    :class:`~pybackend.model.source.ModelSource`.

    Attributes:
        signature: with the labels of its outputs.
        options: the server options among its parameters.
        hidden_outputs: outputs that clients never see.
        digest: identifies its code and configuration; empty if no cache needs it.
        warmup: samples that each instance runs before it accepts requests.
        states: initial states of its sequences, None for a model without sequences.
    """

    config: ModelConfig
    signature: ModelSignature
    options: ModelOptions
    hidden_outputs: frozenset[str]
    digest: bytes
    warmup: tuple[WarmupSample, ...]
    states: ImplicitStates | None


def config_on_this_machine(config: ModelConfig, host: ModelHost) -> tuple[ModelConfig, bool]:
    """The configuration with which a model runs, and whether its instances were moved from GPUs to the CPU."""
    lacks_gpu = not host.gpus.found or not known_backend(config.backend).on_gpu
    moved = on_cpu(config) if host.settings.gpu_models_on_cpu and lacks_gpu else None
    return moved or config, moved is not None


def completed_version(
    config: ModelConfig,
    directory: Path,
    extras_of: ExtrasOf,
    digest: bytes = b"",
    *,
    validate_outputs: bool = False,
    process_memory: MemoryLimit | None = None,
) -> CompletedVersion:
    """Read the files in the model directory that a completed, validated configuration names. Blocking.

    ``validate_outputs`` and ``process_memory`` are for a model that does not say.
    """
    signature = signature_of(config, read_labels(config, directory), extras_of(config))
    has_sequences = config.scheduling is Scheduling.SEQUENCE_BATCHING
    return CompletedVersion(
        config=config,
        signature=signature,
        options=options_of(config, validate_outputs=validate_outputs, process_memory=process_memory),
        hidden_outputs=hidden_outputs(config),
        digest=digest,
        warmup=warmup_samples(config, signature, directory),
        states=ImplicitStates(sequences_of(config.document), directory) if has_sequences else None,
    )


def is_tended(version: CompletedVersion) -> bool:
    """Whether the server does more with each request to a version than to pass it on."""
    config, options = version.config, version.options
    return bool(
        config.scheduling is not Scheduling.DEFAULT
        or config.decoupled
        or options.concurrency > 1
        or options.validate_outputs
        or options.execution_limit_s
        or version.signature.has_reshape
    )


class VersionLoader:
    """Loads one version in two steps.

    Its processes hold everything that was started or made, even if loading fails halfway.

    Attributes:
        warnings: about the version's outputs, None for none.
    """

    def __init__(
        self, source: ModelSource, host: ModelHost, processes: ModelProcesses, warnings: OutputWarnings | None = None
    ) -> None:
        self.warnings = warnings
        self._source = source
        self._host = host
        self._processes = processes
        self._config, self._was_moved = config_on_this_machine(source.config, host)
        self._files = f"the files of model '{source.full_name}'"
        self._first_name = f"{source.name}_0"

    async def complete(self) -> CompletedVersion:
        """Import the model in the first process, let it complete its configuration, and read the files this names.

        Raises:
            ModelLoadError: loading failed, or InferenceError likewise; the text gives the reason.
        """
        source, host, files = self._source, self._host, self._files
        planned = await self.open()
        first = self._processes.make_instance(planned[0] if planned else self._first_name)
        self._processes.instances.append(first)
        stub = self._processes.stub_settings(first, planned[0].policy_name if planned else "")
        completed = await first.load(stub, self._config.to_json() if host.settings.auto_complete else None)
        config = await apart(files, finish_config, self._config, completed, len(host.gpus.found), host.gpus.summary)
        if self._was_moved:
            log.warning("model '%s' is configured for GPUs, and runs on the CPU: --gpu-models=cpu", source.full_name)
        for warning in config.warnings:
            log.warning("%s", warning)
        digest = b""
        if host.cache is not None and host.cache.stable_keys:
            digest = await apart(files, version_digest, source, config)
        warn_without_cache(host.cache, config)
        settings = host.settings
        limit_bytes = settings.process_memory_limit_bytes
        return await apart(
            files,
            completed_version,
            config,
            source.directory,
            host.extras_of,
            digest,
            validate_outputs=settings.validate_outputs,
            process_memory=MemoryLimit(limit_bytes, "--process-memory-limit") if limit_bytes else None,
        )

    async def open(self) -> list[InstanceSpec]:
        """Check and prepare everything that must be right before the model's code can run; the first step of a load.

        Returns the instances, according to the configuration before the model has completed it.
        """
        await apart(self._files, self._source.check_model_file)
        gpus = self._host.gpus
        check_instances(self._config, len(gpus.found), gpus.summary)
        planned = planned_instances(self._config, len(gpus.found))
        await self._processes.open(planned, [spec.name for spec in planned] or [self._first_name])
        return planned

    async def initialize(self, version: CompletedVersion) -> list[ModelInstance]:
        """Start the other instances and initialise all of them; returns those that accept requests."""
        processes, config = self._processes, version.config
        specs = instances(config)
        processes.instances += [processes.make_instance(spec) for spec in specs[1:]]
        if not version.options.validate_outputs:  # otherwise their clients get an error
            self.warnings = OutputWarnings(version.signature, version.hidden_outputs)
        every = list(zip(processes.instances, specs, strict=True))
        await self._start(version, every)
        return [instance for instance, spec in every if not spec.passive]

    async def _start(self, version: CompletedVersion, added: Sequence[tuple[ModelInstance, InstanceSpec]]) -> None:
        resources, config = self._host.resources, version.config
        for instance, spec in added:
            limit = rate_limit_of(config, spec.group, spec.device_id)
            if resources is not None and limit is not None:
                instance.executor.limit_by(resources, limit)
        await self._processes.prepare()
        config_json = config.to_json()
        outcomes = await asyncio.gather(
            *(
                instance.initialize(self._instance_settings(version, instance, spec, config_json))
                for instance, spec in added
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def renewed(self, config: ModelConfig) -> ModelConfig:
        """A completed configuration with the instances of this loader's source."""
        gpus = self._host.gpus
        groups = with_scheduling(self._config.document, len(gpus.found))["instance_group"]
        renewed = from_document({**config.document, "instance_group": groups}, self._config.source)
        validate(renewed, len(gpus.found), gpus.summary)
        return renewed.with_warnings(config.warnings)

    async def change_instances(
        self, before: CompletedVersion, after: CompletedVersion
    ) -> tuple[list[ModelInstance], list[ModelInstance]]:
        """Start the instances that a serving version lacks.

        Returns all instances that it is to have, and those of them that accept requests.
        """
        processes = self._processes
        present = list(zip(self._descriptions(before.config), processes.instances, strict=True))
        wanted, added = [], []
        for description in self._descriptions(after.config):
            found, spec = next((pair for pair in present if pair[0] == description), None), description[0]
            if found is not None:
                present.remove(found)
                wanted.append((found[1], spec))
            else:
                added.append((processes.make_instance(spec), spec))
                wanted.append(added[-1])
        await self._start_beside(after, added)
        return [instance for instance, _ in wanted], [instance for instance, spec in wanted if not spec.passive]

    async def start_successor(self, version: CompletedVersion, instance: ModelInstance) -> ModelInstance:
        """Start another instance like one of a serving version, which is to make place for it."""
        spec = instances(version.config)[self._processes.instances.index(instance)]
        successor = self._processes.make_instance(spec)
        await self._start_beside(version, [(successor, spec)])
        return successor

    async def _start_beside(
        self, version: CompletedVersion, added: Sequence[tuple[ModelInstance, InstanceSpec]]
    ) -> None:
        try:
            await self._start(version, added)
        except BaseException:  # cancelled, too: processes must not outlive their load
            await self._processes.drop([instance for instance, _ in added])
            raise

    def _descriptions(self, config: ModelConfig) -> list[tuple[InstanceSpec, RateLimit | None]]:
        return [(spec, rate_limit_of(config, spec.group, spec.device_id)) for spec in instances(config)]

    def needs_server(self, version: CompletedVersion) -> bool:
        """Whether requests must come to the server even from the version's own processes.

        They must if the server has a part in them: because it puts several into a batch, follows sequences, holds
        resources, keeps answers, changes outputs, limits the time, or passes on a stream.
        """
        return self.tends(version) or self._processes.group is None or self._processes.is_debugged

    def tends(self, version: CompletedVersion) -> bool:
        """Whether the server, as it is set up, does more with each request to a version than to pass it on."""
        return (self._host.cache is not None and version.config.response_cache_enabled) or is_tended(version)

    def _signature_for_neighbours(self, version: CompletedVersion, spec: InstanceSpec) -> Signature | None:
        """Describe requests for models in the same process; None if all of them must come to the server."""
        limit, signature = rate_limit_of(version.config, spec.group, spec.device_id), version.signature
        is_limited = self._host.resources is not None and limit is not None
        if spec.passive or is_limited or self.needs_server(version):
            return None
        inputs = [
            InputSignature(each.name, each.datatype, each.dims, each.optional) for each in signature.inputs.values()
        ]
        return Signature(signature.max_batch_size, inputs, self._processes.member)

    def _instance_settings(
        self, version: CompletedVersion, instance: ModelInstance, spec: InstanceSpec, config_json: str
    ) -> InstanceSettings:
        config, options, debugged = version.config, version.options, self._processes.is_debugged
        initialize = Initialize(
            args={
                "model_config": config_json,
                "model_instance_kind": spec.kind,
                "model_instance_name": spec.name,
                "model_instance_device_id": "0",  # as CUDA counts in its process, which sees its GPU alone
                "model_repository": str(self._source.directory),
                "model_version": str(self._source.version),
                "model_name": self._source.name,
            },
            output_names=[*version.signature.outputs, *version.hidden_outputs],
            copy_inputs=options.copy_inputs,
            decoupled=config.decoupled,
            concurrency=1 if config.decoupled or is_iterative(config) else options.concurrency,
            reschedules=is_iterative(config),
            drops_unknown_outputs=not options.validate_outputs,
            maps_regions=options.views_regions,
            calls_neighbours=not options.cancels_calls,
            signature=self._signature_for_neighbours(version, spec),
        )
        return InstanceSettings(
            stub=self._processes.stub_settings(instance, spec.policy_name),
            initialize=initialize,
            options=replace(options, execution_limit_s=0) if debugged else options,
            readiness_limit_s=None if debugged else READINESS_LIMIT_S,
            warmup=version.warmup,
            outputs=self.warnings,
        )
