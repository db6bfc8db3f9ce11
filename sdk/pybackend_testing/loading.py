"""Finds a model's files, and loads it to a ready instance: the same steps as in a server, in the same order."""

import importlib.util
import json
import os
from functools import partial
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple, Union

from pybackend_stub.model_modules import ModelModules
from pybackend_testing.configuration import Configuration, finish_configuration, signature_of
from pybackend_testing.errors import ConfigError, LoadError, ModelDirectoryError
from pybackend_testing.executor import ModelExecutor, turns_of
from pybackend_testing.host import Host, ModelProcess
from pybackend_testing.local import HarnessRuntime, LocalProcess
from pybackend_testing.logs import ModelLog
from pybackend_testing.model_table import ModelTable
from pybackend_testing.remote import EnvironmentProcess, RemoteProcess
from pybackend_wire.host_messages import Initialize, ModelToLoad

PathLike = Union[str, "os.PathLike[str]"]


class ModelPlan(NamedTuple):
    """A model to load, its configuration read and not yet completed.

    None stands for the configured kind, for the test's own process as environment, and for no debugger. A debugger's
    port is for a model in an environment.
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
    device_id: int
    wait_s: float
    environment: Optional[str]
    debug_port: Optional[int]


def open_model(plan: ModelPlan, table: ModelTable, log: ModelLog) -> "Tuple[ModelExecutor, Configuration]":
    """Import, complete and initialise the model; returns what executes it, and the effective configuration."""
    gpus = _gpu_count(plan.configuration)
    document = finish_configuration(plan.configuration, None, gpus, check=False).document
    name = f"{document['instance_group'][0]['name']}_0"
    host = Host(table)
    process = _process(plan, host, table, log, name, document["parameters"])
    host.connect(process)
    try:
        model = ModelToLoad(plan.model_file, plan.name, name, plan.version_directory, plan.of_backend)
        completed = process.load(model, json.dumps(plan.configuration.document) if plan.auto_complete else None)
        finished = finish_configuration(plan.configuration, completed, gpus)
        document = finished.document
        signature, turns = signature_of(document), turns_of(document)
        decoupled = bool(document.get("model_transaction_policy", {}).get("decoupled", False))
        host.reschedules, host.streams = turns is not None, decoupled
        args = {
            "model_config": json.dumps(document, separators=(",", ":")),
            "model_instance_kind": plan.kind or document["instance_group"][0]["kind"][len("KIND_") :],
            "model_instance_name": name,
            "model_instance_device_id": str(plan.device_id),
            "model_repository": plan.directory,
            "model_version": str(plan.version),
            "model_name": plan.name,
        }
        host.has_is_ready = process.initialize(
            Initialize(
                args,
                list(signature.outputs),
                _text(document, "INPUT_COPY") == "yes",
                decoupled,
                int(_text(document, "ASYNC_EXECUTE_CONCURRENCY") or 1),
                host.reschedules,
                drops_unknown_outputs=False,
                maps_regions=False,
            )
        )
    except BaseException:
        process.release()
        raise
    cancels_calls = _text(document, "CANCEL_CALLS_WITH_REQUEST") == "yes"
    executor = ModelExecutor(host, name, signature, decoupled, cancels_calls, turns, plan.wait_s, table.failures)
    return executor, finished


def _process(
    plan: ModelPlan, host: Host, table: ModelTable, log: ModelLog, instance_name: str, parameters: "Mapping[str, Any]"
) -> ModelProcess:
    if plan.environment is not None:
        places = [plan.version_directory, os.path.dirname(plan.model_file)]
        start = partial(EnvironmentProcess, plan.environment, plan.name, plan.directory, parameters, places)
        return RemoteProcess(host, start, plan.environment, plan.name, instance_name, plan.wait_s, log, plan.debug_port)
    modules = ModelModules(plan.model_file, plan.of_backend)
    runtime = HarnessRuntime(instance_name, plan.version_directory, modules, log)
    return LocalProcess(host, runtime, plan.wait_s, table.failures)


def _text(document: Mapping[str, Any], key: str) -> str:
    value: str = document["parameters"].get(key, {}).get("string_value", "")
    return value


def _gpu_count(configuration: Configuration) -> int:
    """Count the GPUs that the configuration needs; whether they exist is the model's concern."""
    groups = configuration.document["instance_group"]
    if not any(group.get("kind") == "KIND_GPU" for group in groups):
        return 0
    highest: int = max([0, *(gpu for group in groups for gpu in group.get("gpus", ()))])
    return highest + 1


# --- Files of a model
# ---------------------------------------------------------------------------------------------------


def model_directory(path: PathLike) -> str:
    """Return the absolute path of a model's directory."""
    directory = os.path.abspath(os.fspath(path))
    if os.path.isfile(directory):
        raise ModelDirectoryError(
            f"{directory} is a file: pass the model's directory, two levels above, which holds version directories"
        )
    if not os.path.isdir(directory):
        raise ModelDirectoryError(f"there is no directory {directory}")
    return directory


def version_directory(directory: str, wanted: Optional[int]) -> Tuple[int, str]:
    """Return a version's number and directory; the highest version by default."""
    versions = _versions(directory)
    if wanted is not None:
        if wanted not in versions:
            raise ModelDirectoryError(f"model {directory} has no version {wanted}; it has {sorted(versions) or 'none'}")
        return wanted, versions[wanted]
    if versions:
        return max(versions), versions[max(versions)]
    if os.path.isfile(os.path.join(directory, "model.py")):
        raise ModelDirectoryError(
            f"{directory} is a version directory, as it holds a model.py: pass the directory above it, "
            f"{os.path.dirname(directory)}"
        )
    models = [name for name in sorted(os.listdir(directory)) if _versions(os.path.join(directory, name))]
    if models:
        raise ModelDirectoryError(f"{directory} is a repository of models: pass one of them, {', '.join(models)}")
    raise ModelDirectoryError(
        f"{directory} has no version directory: the model's file is expected in {directory}/1/model.py"
    )


def model_file(directory: str, document: Mapping[str, Any], backend_directory: Optional[PathLike]) -> Tuple[str, bool]:
    """Return the file with the model's class, and whether it belongs to a Python-based backend."""
    backend = document["backend"]
    if backend_directory is None:
        backend_directory = _shipped_backends(backend)
    if backend == "python":
        path = os.path.join(directory, document["default_model_filename"])
    elif backend_directory is None:
        raise ConfigError(
            f"model '{document['name']}' has backend '{backend}': backend_directory= must name the directory that holds "
            f"'{backend}' with its model.py. A model with its own model.py has backend: \"python\"."
        )
    else:
        path = os.path.join(os.path.abspath(os.fspath(backend_directory)), backend, document["runtime"] or "model.py")
    if not os.path.isfile(path):
        raise LoadError(f"Failed to preinitialize Python stub: Python model file not found in '{path}'")
    return os.path.normpath(path), backend != "python"


def _shipped_backends(backend: str) -> Optional[str]:
    """Return the directory of the backends that come with pybackend, None if the backend is not there."""
    spec = importlib.util.find_spec("pybackend_backends")
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        if os.path.isfile(os.path.join(directory, backend, "model.py")):
            return directory
    return None


def _versions(directory: str) -> Dict[int, str]:
    if not os.path.isdir(directory):
        return {}
    names = [name for name in os.listdir(directory) if name.isascii() and name.isdigit() and str(int(name)) == name]
    return {int(name): os.path.join(directory, name) for name in names if os.path.isdir(os.path.join(directory, name))}
