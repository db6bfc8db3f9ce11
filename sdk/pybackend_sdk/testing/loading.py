"""Loads a model from its directory to a ready instance: the same steps as in a server, in the same order."""

import json
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from pybackend_sdk.testing.configuration import Configuration, finish_configuration
from pybackend_sdk.testing.executor import ExecutionOptions
from pybackend_sdk.testing.instance import ModelInstance
from pybackend_sdk.testing.logs import ModelLog
from pybackend_sdk.testing.model_calls import ModelCalls
from pybackend_sdk.testing.model_modules import ModelModules
from pybackend_sdk.testing.model_table import ModelTable
from pybackend_sdk.testing.runtime import HarnessRuntime
from pybackend_sdk.testing.signature import signature_of
from pybackend_sdk.testing.turns import turns_of


class ModelPlan(NamedTuple):
    """A model to load.

    Attributes:
        name: the model's name.
        directory: the model's directory.
        version: its version.
        version_directory: the version's directory.
        model_file: the file with its class.
        of_backend: whether that file belongs to a Python-based backend.
        configuration: read, not yet completed.
        auto_complete: whether the model may complete it.
        kind: of the instance, None for the configured one.
        device_id: of the instance, None for the configured one.
        wait_s: how long to wait where a server would wait for ever.
        environment: path of the environment that it runs in, None for the test's own process.
    """

    name: str
    directory: str
    version: int
    version_directory: str
    model_file: str
    of_backend: bool
    configuration: Configuration
    auto_complete: bool
    kind: Optional[str]
    device_id: Optional[int]
    wait_s: float
    environment: Optional[str]


def new_instance(plan: ModelPlan, table: ModelTable, log: ModelLog) -> ModelInstance:
    """Make an instance that is not loaded yet.

    Args:
        plan: the model.
        table: the models that it may call.
        log: receives its lines.
    """
    document = finish_configuration(plan.configuration, None, _gpu_count(plan.configuration), check=False).document
    instance_name = f"{document['instance_group'][0]['name']}_0"
    modules = ModelModules(plan.model_file, plan.of_backend)
    runtime = HarnessRuntime(
        instance_name, plan.version_directory, modules, log, table, table.metrics, ModelCalls(table)
    )
    if plan.environment is None:
        return ModelInstance(runtime, plan.model_file, plan.wait_s, table.failures)
    from pybackend_sdk.testing.remote_instance import RemoteInstance  # late: most tests never use it

    return RemoteInstance(
        runtime,
        plan.environment,
        plan.directory,
        document["parameters"],
        plan.of_backend,
        plan.model_file,
        plan.name,
        plan.wait_s,
        table,
        log,
    )


def load(plan: ModelPlan, instance: ModelInstance) -> Configuration:
    """Import, complete and initialise the model; returns the effective configuration.

    Raises:
        LoadError: the model's code failed.
        ConfigError: the completed configuration is wrong.
    """
    instance.load()
    completed = None
    if plan.auto_complete:
        completed = instance.complete_config(plan.name, json.dumps(plan.configuration.document))
    finished = finish_configuration(plan.configuration, completed, _gpu_count(plan.configuration))
    document = finished.document
    kind, device_id = _placement(plan, document)
    args = {
        "model_config": json.dumps(document, separators=(",", ":")),
        "model_instance_kind": kind,
        "model_instance_name": instance.runtime.instance_name,
        "model_instance_device_id": str(device_id),
        "model_repository": plan.directory,
        "model_version": str(plan.version),
        "model_name": plan.name,
    }
    instance.initialize(args, signature_of(document), options_of(document))
    return finished


def options_of(document: Mapping[str, Any]) -> ExecutionOptions:
    """Return a finished configuration's settings for executions."""
    return ExecutionOptions(
        decoupled=bool(document.get("model_transaction_policy", {}).get("decoupled", False)),
        concurrency=int(text_parameter(document, "ASYNC_EXECUTE_CONCURRENCY") or 1),
        cancels_calls=text_parameter(document, "CANCEL_CALLS_WITH_REQUEST") == "yes",
        turns=turns_of(document),
    )


def text_parameter(document: Mapping[str, Any], key: str) -> str:
    """Return a value of the configuration's ``parameters``, ``""`` if there is none."""
    value: str = document["parameters"].get(key, {}).get("string_value", "")
    return value


def _gpu_count(configuration: Configuration) -> int:
    """Count the GPUs that the configuration needs; whether they exist is the model's concern."""
    groups = configuration.document["instance_group"]
    if not any(group.get("kind") == "KIND_GPU" for group in groups):
        return 0
    highest: int = max([0, *(gpu for group in groups for gpu in group.get("gpus", ()))])
    return highest + 1


def _placement(plan: ModelPlan, document: Mapping[str, Any]) -> Tuple[str, int]:
    """Return the kind and device of the instance."""
    group = document["instance_group"][0]
    kind = plan.kind or group["kind"][len("KIND_") :]
    configured = group["gpus"][0] if kind == "GPU" and group["gpus"] else 0
    return kind, configured if plan.device_id is None else plan.device_id
