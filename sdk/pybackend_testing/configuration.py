"""Reads a model's configuration for the harness: with the server's parser if it is installed, otherwise plainly.

This is the only module of the SDK that uses the server's package, whose parser reads config.pbtxt, fills in defaults
and checks the result. A model's own environment need not have that package; there the configuration must come from the
test or from ``auto_complete_config``.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from pybackend_sdk.spelling import closest
from pybackend_testing.errors import ConfigError
from pybackend_wire.dtypes import BY_CONFIG_NAME

Document = Dict[str, Any]

ConfigSource = Union[None, str, "os.PathLike[str]", Mapping[str, Any]]
"""None for config.pbtxt in the model's directory; a dict; JSON text; or the path of a .pbtxt or .json file."""

CONFIG_FILENAME = "config.pbtxt"
_NO_SERVER = "the package 'pybackend', which reads config.pbtxt, is not installed here (Python {python})"


class Configuration(NamedTuple):
    """A configuration on its way to the model: the parsed form of ``args["model_config"]``, and its origin for messages."""

    document: Document
    source: str


def read_configuration(
    model_directory: str, given: ConfigSource, overrides: Mapping[str, Any], parameters: Mapping[str, str]
) -> Configuration:
    """Read the configuration, before the model's code completes it.

    The directory's name is the model's, unless the configuration has another. What is given replaces config.pbtxt, the
    overrides replace its fields, and the parameters are added to its own.
    """
    document, source = _written(model_directory, given)
    document = {**document, **overrides}
    if parameters:
        added = {name: {"string_value": _text(name, value)} for name, value in parameters.items()}
        document["parameters"] = {**document.get("parameters", {}), **added}
    document["name"] = document.get("name") or os.path.basename(model_directory)
    if _is_ensemble(document):
        raise ConfigError(
            f"'{document['name']}' is an ensemble, which has no code: EnsembleHarness runs it with its models in a test, and "
            f"`pybackend infer --repository {os.path.dirname(model_directory)} {document['name']}` in a server ({source})"
        )
    document["backend"] = document.get("backend") or "python"
    if document["backend"] == "python":
        document["default_model_filename"] = document.get("default_model_filename") or "model.py"
    server = _server()
    if server is None:
        return Configuration(filled_document(document, source), source)
    return Configuration(server.read(document, source), source)


class EnsembleStep(NamedTuple):
    """A step of an ensemble; ``model_version`` is ``""`` for the newest.

    The maps lead from names of its model to the ensemble's.
    """

    model_name: str
    model_version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def is_ensemble(model_directory: "Union[str, os.PathLike[str]]") -> bool:
    """Whether the configuration in a model's directory is an ensemble's; False where nobody can read it."""
    path = os.path.join(os.fspath(model_directory), CONFIG_FILENAME)
    server = _server()
    try:
        return server is not None and os.path.isfile(path) and _is_ensemble(server.read_file(path))
    except ConfigError:  # the open of the model says so
        return False


def read_ensemble(
    model_directory: str, name: str, given: ConfigSource, overrides: Mapping[str, Any]
) -> "Tuple[Configuration, List[EnsembleStep]]":
    """Read the configuration of an ensemble, and check what needs no other model."""
    document, source = _written(model_directory, given)
    server = _server()
    if server is None:
        raise ConfigError(f"{_NO_SERVER.format(python=sys.version.split()[0])}, and ensembles need it")
    finished, steps = server.ensemble({**document, **overrides, "name": name}, source)
    return Configuration(finished, source), steps


def check_connections(configuration: Configuration, parts: "Sequence[Optional[Document]]") -> None:
    """Check an ensemble against its models' configurations in the order of its steps; None for models without one."""
    server = _server()
    assert server is not None
    server.check_connections(configuration.document, configuration.source, parts)


def _is_ensemble(document: Document) -> bool:
    return document.get("platform") == "ensemble" or bool(document.get("ensemble_scheduling"))


def finish_configuration(
    configuration: Configuration, completed: "Optional[Dict[str, Any]]", gpu_count: int, *, check: bool = True
) -> Configuration:
    """Merge the result of ``auto_complete_config``, or None, into the configuration, and fill in defaults.

    Then ``check`` it.
    """
    document, source = configuration
    server = _server()
    if server is None:
        return Configuration(finish_document(complete_document(document, completed), source, check=check), source)
    return Configuration(server.finish(document, completed, gpu_count, source, check=check), source)


def _written(model_directory: str, given: ConfigSource) -> Tuple[Document, str]:
    if given is None:
        path = os.path.join(model_directory, CONFIG_FILENAME)
        return (_read_file(path), path) if os.path.lexists(path) else ({}, f"no {CONFIG_FILENAME} in {model_directory}")
    if isinstance(given, Mapping):
        return dict(given), "config="
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return read_json(given, "config="), "config="
    try:
        path = os.fspath(given)
    except TypeError:
        raise ConfigError(
            f"config= must be a dict, JSON text, or the path of a .pbtxt or .json file, not {type(given).__name__}"
        ) from None
    return _read_file(path), path


def _read_file(path: str) -> Document:
    if path.endswith(".json"):
        try:
            with open(path, encoding="utf-8") as file:
                return read_json(file.read(), path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"failed to read {path}: {error}") from None
    server = _server()
    if server is None:
        raise ConfigError(
            f"failed to read {path}: {_NO_SERVER.format(python=sys.version.split()[0])}. Pass the configuration as "
            "config={...} or as a .json file (a server sends one for `GET v2/models/<model>/config`), or pass config={} "
            "and let the model's auto_complete_config fill it in"
        )
    return server.read_file(path)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(
            f"parameters= takes strings, as config.pbtxt does: {name!r} is {type(value).__name__}, write {str(value)!r}"
        )
    return value


# --- The server's reader --------------------------------------------------------------------------------------------


class _Server:
    """The functions of the server's package that the harness uses."""

    def read_file(self, path: str) -> Document:
        from pathlib import Path

        from pybackend.errors import ModelLoadError
        from pybackend.modelconfig.parser import read_config_file

        try:
            return read_config_file(Path(path))
        except ModelLoadError as error:
            raise ConfigError(str(error)) from None

    def read(self, document: Mapping[str, Any], source: str) -> Document:
        from pybackend.errors import ModelLoadError
        from pybackend.modelconfig.normalisation import with_policies
        from pybackend.modelconfig.parser import parse_config_json

        try:
            return with_policies(parse_config_json(document, source))
        except ModelLoadError as error:
            raise ConfigError(str(error)) from None

    def finish(
        self,
        document: Mapping[str, Any],
        completed: "Optional[Mapping[str, Any]]",
        gpu_count: int,
        source: str,
        *,
        check: bool,
    ) -> Document:
        from pybackend.errors import ModelLoadError
        from pybackend.modelconfig.loader import merge_completed
        from pybackend.modelconfig.normalisation import with_scheduling
        from pybackend.modelconfig.schema import from_document
        from pybackend.modelconfig.validation import validate, validate_model_file

        try:
            merged = document if completed is None else merge_completed(document, completed)
            finished = with_scheduling(merged, gpu_count)
            config = from_document(finished, source)
            validate_model_file(config)
            if check:
                validate(config, gpu_count)
        except ModelLoadError as error:
            raise ConfigError(str(error)) from None
        return finished

    def ensemble(self, document: Mapping[str, Any], source: str) -> "Tuple[Document, List[EnsembleStep]]":
        from pybackend.errors import ModelLoadError
        from pybackend.modelconfig.ensemble import steps_of
        from pybackend.modelconfig.loader import finish_ensemble
        from pybackend.modelconfig.schema import from_document

        try:
            config = finish_ensemble(from_document(self.read(document, source), source))
        except ModelLoadError as error:
            raise ConfigError(str(error)) from None
        steps = [
            EnsembleStep(each.model_name, each.model_version, each.inputs, each.outputs) for each in steps_of(config)
        ]
        return dict(config.document), steps

    def check_connections(
        self, document: Mapping[str, Any], source: str, parts: "Sequence[Optional[Document]]"
    ) -> None:
        from pybackend.errors import ModelLoadError
        from pybackend.modelconfig.ensemble import validate_connections
        from pybackend.modelconfig.schema import from_document

        scheduling = document["ensemble_scheduling"]
        steps = [step for step, part in zip(scheduling["step"], parts) if part is not None]
        known = {**document, "ensemble_scheduling": {**scheduling, "step": steps}}
        configs = [from_document(part, source) for part in parts if part is not None]
        try:
            validate_connections(from_document(known, source), configs)
        except ModelLoadError as error:
            raise ConfigError(str(error)) from None


def _server() -> Optional[_Server]:
    """Return the server's configuration reader, None if the server is not installed."""
    try:
        import_module("pybackend.modelconfig.parser")
    except ImportError:
        return None
    return _Server()


# --- Without the server: defaults, and the checks that no meaningful test can do without ---------------------------

_FIELDS: Document = {
    "name": "",
    "platform": "",
    "backend": "",
    "runtime": "",
    "max_batch_size": 0,
    "input": [],
    "output": [],
    "batch_input": [],
    "batch_output": [],
    "instance_group": [],
    "default_model_filename": "",
    "cc_model_filenames": {},
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}
_INPUT: Document = {
    "name": "",
    "data_type": "TYPE_INVALID",
    "format": "FORMAT_NONE",
    "dims": [],
    "is_shape_tensor": False,
    "allow_ragged_batch": False,
    "optional": False,
    "is_non_linear_format_io": False,
}
_OUTPUT: Document = {
    "name": "",
    "data_type": "TYPE_INVALID",
    "dims": [],
    "label_filename": "",
    "is_shape_tensor": False,
    "is_non_linear_format_io": False,
}
_GROUP: Document = {
    "name": "",
    "kind": "KIND_CPU",
    "count": 1,
    "gpus": [],
    "secondary_devices": [],
    "profile": [],
    "passive": False,
    "host_policy": "",
}
_COMPLETED = ("max_batch_size", "input", "output", "dynamic_batching", "sequence_batching", "model_transaction_policy")
"""Fields that a model can complete; other edits have no effect, as in the server."""


def read_json(text: str, source: str) -> Document:
    """Parse a configuration in JSON."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"failed to read model configuration from {source}: it is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"failed to read model configuration from {source}: expected a JSON object, got {text[:60]}")
    return document


def filled_document(document: Mapping[str, Any], source: str) -> Document:
    """Return a document with all the fields that models can rely on."""
    filled = {**_FIELDS, **document}
    filled["version_policy"] = filled.get("version_policy") or {"latest": {"num_versions": 1}}
    filled["input"] = _list_of(filled, "input", _INPUT, source)
    filled["output"] = _list_of(filled, "output", _OUTPUT, source)
    return filled


def complete_document(document: Document, completed: Optional[Mapping[str, Any]]) -> Document:
    """Merge the result of the model's ``auto_complete_config`` into a document."""
    if completed is None:
        return document
    return {**document, **{name: completed[name] for name in _COMPLETED if name in completed}}


def finish_document(document: Document, source: str, *, check: bool = True) -> Document:
    """Return the effective document; with ``check``, its tensors must be complete."""
    document = filled_document(document, source)
    name = document["name"]
    for field in ("input", "output") if check else ():
        for tensor in document[field]:
            _check_tensor(field, tensor, name, source)
    groups = _list_of(document, "instance_group", _GROUP, source) or [{**_GROUP, "name": name}]
    for index, group in enumerate(groups):
        group["name"] = group["name"] or f"{name}_{index}"
        group["count"] = group["count"] or 1
        if group["kind"] == "KIND_AUTO":
            group["kind"] = "KIND_CPU"
    document["instance_group"] = groups
    document.setdefault("model_transaction_policy", {"decoupled": False})
    return document


def _list_of(document: Mapping[str, Any], field: str, defaults: Document, source: str) -> "List[Document]":
    values = document[field]
    if not isinstance(values, (list, tuple)) or not all(isinstance(value, Mapping) for value in values):
        raise ConfigError(
            f"failed to read model configuration from {source}: field '{field}': expected a list of objects, got "
            f"{values!r}"
        )
    for value in values:
        for key in value:
            if key not in defaults and key not in ("reshape", "rate_limiter"):
                raise ConfigError(
                    f"failed to read model configuration from {source}: there is no field '{field}.{key}'. Known: "
                    f"{', '.join(defaults)}."
                )
    return [{**defaults, **value} for value in values]


def _check_tensor(field: str, tensor: Document, model_name: str, source: str) -> None:
    subject = f"model {field} '{tensor['name']}'"
    reason = None
    if not tensor["name"]:
        reason = f"model {field} must specify 'name'"
    elif tensor["data_type"] == "TYPE_INVALID":
        reason = f"{subject} must specify 'data_type'"
    elif tensor["data_type"] not in BY_CONFIG_NAME:
        reason = f"{subject} has data_type '{tensor['data_type']}', which is not one of {', '.join(BY_CONFIG_NAME)},"
    elif not tensor["dims"]:
        reason = f"{subject} must specify 'dims'"
    elif not all(isinstance(dim, int) and (dim >= 1 or dim == -1) for dim in tensor["dims"]):
        reason = f"{subject} dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    if reason is not None:
        raise ConfigError(f"{reason} for {model_name} ({source})")


class TensorSpec(NamedTuple):
    """One input or output.

    ``dims`` are as clients see them, the batch dimension included, where -1 is any size; ``model_dims`` are as the
    model sees them, None unless the configuration reshapes them. The datatype is the wire's name, e.g. ``FP32``.
    """

    name: str
    datatype: str
    dims: Tuple[int, ...]
    optional: bool
    model_dims: Optional[Tuple[int, ...]]

    def __str__(self) -> str:
        return f"{self.name} ({self.datatype} {list(self.dims)}{', optional' if self.optional else ''})"

    def shape_for_model(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape in which the model receives a valid input."""
        return shape if self.model_dims is None else _reshaped(shape, self.dims, self.model_dims)

    def shape_for_client(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the shape in which clients receive an output; a shape that does not match stays as it is."""
        return shape if self.model_dims is None else _reshaped(shape, self.model_dims, self.dims)


class Signature(NamedTuple):
    """The tensors of a model by name, in configured order; ``max_batch_size`` is 0 if they have no batch dimension.

    ``controls`` are the names of the control tensors that a sequence batcher would add.
    """

    model_name: str
    max_batch_size: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    controls: Tuple[str, ...]


def signature_of(document: Mapping[str, Any]) -> Signature:
    """Return the signature of a finished configuration."""
    batched = document["max_batch_size"] > 0
    controls = document.get("sequence_batching", {}).get("control_input", ())
    return Signature(
        document["name"],
        document["max_batch_size"],
        _specs(document["input"], batched),
        _specs(document["output"], batched),
        tuple(control["name"] for control in controls),
    )


def nearest(name: str, known: "Iterable[str]") -> str:
    """Return `` Did you mean 'x'?`` for a name that resembles a known one, else nothing."""
    found = closest(name, known)
    return f" Did you mean '{found}'?" if found else ""


def listed(specs: "Iterable[TensorSpec]") -> str:
    """List tensors for a message."""
    return ", ".join(map(str, specs)) or "none"


def shape_text(shape: "Sequence[int]") -> str:
    """Format a shape as the server's messages do: ``[2,3]``."""
    return "[" + ",".join(map(str, shape)) + "]"


def _specs(tensors: "Iterable[Mapping[str, Any]]", batched: bool) -> Dict[str, TensorSpec]:
    specs = {}
    batch: Tuple[int, ...] = (-1,) if batched else ()
    for tensor in tensors:
        reshape = tensor.get("reshape")
        specs[tensor["name"]] = TensorSpec(
            tensor["name"],
            BY_CONFIG_NAME[tensor["data_type"]].name,
            (*batch, *tensor["dims"]),
            bool(tensor.get("optional", False)),
            None if reshape is None else (*batch, *reshape.get("shape", ())),
        )
    return specs


def _reshaped(shape: "Sequence[int]", pattern: "Sequence[int]", target: "Sequence[int]") -> "Sequence[int]":
    """Convert ``shape``, which follows ``pattern``, to the form of ``target``; variable dimensions keep their order."""
    if len(shape) != len(pattern) or any(dim not in (-1, size) for dim, size in zip(pattern, shape)):
        return shape
    variable = iter([size for dim, size in zip(pattern, shape) if dim == -1])
    return [next(variable) if dim == -1 else dim for dim in target]
