"""The deployment target ``pybackend`` of MLflow: its models become models of a server in explicit mode.

MLflow finds this module by the entry point ``mlflow.deployments``; nothing else imports it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import yaml
from mlflow.artifacts import download_artifacts
from mlflow.deployments import BaseDeploymentClient, PredictionsResponse
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    PERMISSION_DENIED,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)
from mlflow.utils.proto_json_utils import dump_input_data

from pybackend.errors import PybackendError
from pybackend.modelconfig.model_directory import CONFIG_FILENAME, scan_versions
from pybackend.modelconfig.parser import format_config_text
from pybackend_client import (
    AccessError,
    Client,
    ClientError,
    InvalidRequestError,
    ModelNotFoundError,
    RefusedError,
    UnavailableError,
    UnreachableError,
)
from pybackend_client.connection import control_path, model_path
from pybackend_tools.importing.detection import detect
from pybackend_tools.importing.entry import StagedEntry, place_of
from pybackend_tools.importing.kinds import FoundModel
from pybackend_tools.importing.mlflow_directory import PYFUNC, is_mlflow
from pybackend_tools.importing.run import ENVIRONMENT, backed_by, first_configuration, lay_out

_TARGET = "pybackend"
_DEFAULT_URL = "http://localhost:8000"
_TIMEOUT_S = 600.0
_ARCHIVE = "environment.tar.gz"
_IN_MODEL = f"$$TRITON_MODEL_DIRECTORY/{_ARCHIVE}"
_PACK = "pack"
_KEYS = ("environment", "repository", "timeout")

_CODES = {
    AccessError: PERMISSION_DENIED,
    InvalidRequestError: INVALID_PARAMETER_VALUE,
    ModelNotFoundError: RESOURCE_DOES_NOT_EXIST,
    UnavailableError: TEMPORARILY_UNAVAILABLE,
    UnreachableError: TEMPORARILY_UNAVAILABLE,
}

_HELP = f"""\
The target {_TARGET} deploys models to a running server of pybackend:

  pybackend serve models --model-control-mode=explicit --allow-mlflow
  mlflow deployments create -t pybackend:http://localhost:8000 --name churn -m models:/churn/3

Target: pybackend:http://HOST:PORT, pybackend:https://HOST:PORT, pybackend:unix:PATH; pybackend alone is the server in
$PYBACKEND_URL, else {_DEFAULT_URL}. $PYBACKEND_API_KEY has its API key.

Flavor: python_function runs the model as MLflow does, in the server's Python or the given environment, which must have mlflow.
Another flavor (onnx, xgboost, lightgbm, sklearn, pytorch, tensorflow, transformers) is served by its backend, without mlflow.

Configuration (-C NAME=VALUE):
  environment=FILE   an archive of `pybackend pack` for the model; `pack` makes one of the packages that the model states
  repository=DIR     put the model into this directory, which is the server's repository: it outlasts the server. Without it
                     the files are sent to the server, which keeps them until the model is unloaded or the server ends
  timeout=SECONDS    how long the model may take to start [{_TIMEOUT_S:g}]

A model that is pickled code runs as such: the sandbox of the server confines it. `predict` needs the server's --allow-mlflow.
`run-local` starts a server for one model on this machine, with -C port=PORT [8000], until Ctrl-C.
"""


def target_help() -> str:
    """The text of ``mlflow deployments help -t pybackend``."""
    return _HELP


def run_local(name: str, model_uri: str, flavor: str | None = None, config: Mapping[str, Any] | None = None) -> None:
    """Serve a model on this machine until Ctrl-C, with its predictions at ``/invocations``."""
    _check_name(name)
    given = dict(config or {})
    port = given.pop("port", 8000)
    with tempfile.TemporaryDirectory(prefix="pybackend-mlflow-") as directory, _explained():
        repository = Path(directory) / "models"
        Path(directory).chmod(0o755)  # the model may run as another user
        with _saved(model_uri, flavor, _checked({**given, "repository": str(repository)})) as saved:
            saved.write(repository, name, adds=False)
        command = [sys.executable, "-m", "pybackend", "serve", str(repository), "--allow-mlflow", f"--http-port={port}"]
        local = ["--http-address=127.0.0.1", "--allow-grpc=false", "--allow-metrics=false"]
        status = subprocess.run([*command, *local], check=False).returncode
    if status > 0:
        raise MlflowException(f"the server has ended with exit status {status}: its log says why")


class PybackendClient(BaseDeploymentClient):  # type: ignore[misc]  # MLflow is not installed where types are checked
    """Deploys models of MLflow to a server of pybackend in explicit mode; see :func:`target_help`."""

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)
        self._url = target_uri.removeprefix(_TARGET).removeprefix(":").removeprefix("//")
        self._connected().close()  # the URL is one

    def _connected(self) -> Client:
        key = os.environ.get("PYBACKEND_API_KEY", "").strip() or None
        try:
            return Client(self._url or os.environ.get("PYBACKEND_URL") or _DEFAULT_URL, api_key=key)
        except ValueError as error:
            raise MlflowException(f"{_TARGET}: {error}", INVALID_PARAMETER_VALUE) from None

    def _request(self, method: str, path: str, document: Any = None, **options: Any) -> Any:
        with _explained(), self._connected() as client:
            return client.request(method, path, document, **options)

    def create_deployment(
        self,
        name: str,
        model_uri: str,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Deploy a model under a name that no serving model has, and return when it is ready."""
        _no_endpoint(endpoint)
        _check_name(name)
        if self._state_of(name) is not None:
            raise MlflowException(
                f"the deployment '{name}' exists: update it, or delete it first", RESOURCE_ALREADY_EXISTS
            )
        self._deploy(name, model_uri, flavor, config, adds=False)
        return {**self.get_deployment(name), "flavor": flavor or PYFUNC}

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Mapping[str, Any] | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Replace the model of a deployment.

        The old one answers until the new one is ready, and stays if that fails.
        """
        _no_endpoint(endpoint)
        if model_uri is None:
            raise MlflowException("an update needs the URI of the new model", INVALID_PARAMETER_VALUE)
        self.get_deployment(name)
        self._deploy(name, model_uri, flavor, config, adds=True)
        return {**self.get_deployment(name), "flavor": flavor or PYFUNC}

    def delete_deployment(
        self, name: str, config: Mapping[str, Any] | None = None, endpoint: str | None = None
    ) -> None:
        """Unload a model, and remove its files from the directory ``repository``.

        A model that is not there is no error.
        """
        _no_endpoint(endpoint)
        _check_name(name)
        given = _checked(config)
        try:
            self._request("POST", f"{control_path(name)}/unload", {})
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        if "repository" in given:
            directory = Path(given["repository"]) / name
            with _explained():
                shutil.rmtree(directory, ignore_errors=not directory.exists())

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """The models that serve, or are being loaded."""
        _no_endpoint(endpoint)
        found: dict[str, dict[str, Any]] = {}
        rows = self._request("POST", "/v2/repository/index", {}, repeatable=True)
        for row in rows:
            if row.get("state") in {"READY", "LOADING"}:
                each = found.setdefault(row["name"], {"name": row["name"], "state": row["state"], "versions": []})
                each["versions"].append(row["version"])
        return list(found.values())

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """A model's state, versions, inputs and outputs."""
        _no_endpoint(endpoint)
        found = self._state_of(name)
        if found is None:
            raise MlflowException(f"there is no deployment '{name}'", RESOURCE_DOES_NOT_EXIST)
        if found["state"] == "READY":
            metadata = self._request("GET", model_path(name, ""), repeatable=True)
            found |= {side: metadata[side] for side in ("inputs", "outputs")}
        return found

    def predict(
        self, deployment_name: str | None = None, inputs: Any = None, endpoint: str | None = None
    ) -> PredictionsResponse:
        """Predictions for a DataFrame, an array, a list, or a dictionary of arrays.

        The server needs ``--allow-mlflow``.
        """
        _no_endpoint(endpoint)
        if deployment_name is None:
            raise MlflowException("predict needs the name of a deployment", INVALID_PARAMETER_VALUE)
        try:
            if isinstance(inputs, dict):
                text = json.dumps({"inputs": {name: np.asarray(value).tolist() for name, value in inputs.items()}})
            else:
                text = dump_input_data(inputs.to_frame() if hasattr(inputs, "to_frame") else inputs)
            document = json.loads(text)
        except (TypeError, ValueError) as error:
            raise MlflowException(f"these inputs cannot be written as JSON: {error}", INVALID_PARAMETER_VALUE) from None
        return PredictionsResponse(self._request("POST", f"{model_path(deployment_name, '')}/invocations", document))

    def _state_of(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self.list_deployments() if each["name"] == name), None)

    def _deploy(
        self, name: str, model_uri: str, flavor: str | None, config: Mapping[str, Any] | None, *, adds: bool
    ) -> None:
        given = _checked(config)
        with _explained(), _saved(model_uri, flavor, given) as saved:
            parameters, written = {}, None
            if "repository" in given:
                written = saved.write(Path(given["repository"]), name, adds=adds)
            else:
                parameters = saved.upload(name)
            try:
                path = f"{control_path(name)}/load"
                self._request("POST", path, {"parameters": parameters}, timeout_s=float(given["timeout"]))
            except MlflowException as error:
                if written is not None and isinstance(error.__cause__, RefusedError):
                    shutil.rmtree(written, ignore_errors=True)
                raise


class _Saved:
    """A model that MLflow has saved, on this machine, and the archive of its environment, None for the server's Python."""

    def __init__(self, found: FoundModel, archive: Path | None) -> None:
        self._found = backed_by(found, "")
        self._archive = archive

    def _configuration(self) -> dict[str, Any]:
        parameters = {} if self._archive is None else {ENVIRONMENT: {"string_value": _IN_MODEL}}
        return first_configuration(self._found, {"parameters": parameters})

    def write(self, repository: Path, name: str, *, adds: bool) -> Path:
        """Put the model into a repository, as a new model, or as the next version of one that is there.

        Returns its directory.
        """
        version = max(scan_versions(repository / name).versions, default=0) + 1 if adds else None
        place = place_of(repository, name, version, force=False)
        with StagedEntry(place) as entry:
            self._lay_out(entry)
            entry.commit()
        return place.model / str(place.version) if place.adds else place.model

    def upload(self, name: str) -> dict[str, str]:
        """The parameters of a load request that brings the model."""
        with tempfile.TemporaryDirectory(prefix="pybackend-mlflow-") as directory:
            place = place_of(Path(directory), name, None, force=False)
            with StagedEntry(place) as entry:
                self._lay_out(entry)
                files = [path for path in entry.model.rglob("*") if path.is_file() and path.name != CONFIG_FILENAME]
                return {
                    "config": json.dumps(self._configuration()),
                    **{
                        f"file:{path.relative_to(entry.model)}": base64.b64encode(path.read_bytes()).decode()
                        for path in files
                    },
                }

    def _lay_out(self, entry: StagedEntry) -> None:
        lay_out(entry, self._found)
        entry.write(CONFIG_FILENAME, format_config_text(self._configuration()))
        if self._archive is not None:
            shutil.copyfile(self._archive, entry.model / _ARCHIVE)


@contextmanager
def _saved(model_uri: str, flavor: str | None, given: Mapping[str, Any]) -> Iterator[_Saved]:
    """The model behind a URI of MLflow, as long as this lasts."""
    with tempfile.TemporaryDirectory(prefix="pybackend-mlflow-") as directory:
        path = Path(download_artifacts(artifact_uri=model_uri, dst_path=directory))
        if not is_mlflow(path):
            raise MlflowException(f"{model_uri} is no model of MLflow: it has no file MLmodel", INVALID_PARAMETER_VALUE)
        archive = None
        environment = str(given.get("environment", ""))
        if environment == _PACK:
            archive = _packed(path, Path(directory) / _ARCHIVE)
        elif environment:
            archive = Path(environment)
            if not archive.is_file():
                raise MlflowException(
                    f"the environment {environment} is no file: `pybackend pack` makes one", INVALID_PARAMETER_VALUE
                )
        yield _Saved(detect(path, flavor=flavor or PYFUNC), archive)


def _packed(model: Path, archive: Path) -> Path:
    """An archive with the packages that a model states, and its Python."""
    command = [sys.executable, "-m", "pybackend", "pack", "-o", str(archive)]
    if (model / "requirements.txt").is_file():
        command.append(str(model / "requirements.txt"))
        try:
            python = str(yaml.safe_load((model / "python_env.yaml").read_text(encoding="utf-8"))["python"])
            command.append(f"--python={'.'.join(python.split('.')[:2])}")
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
            pass  # the Python that runs this
    else:
        command.append(str(model / "conda.yaml"))
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise MlflowException(f"the packages of the model cannot be packed: {done.stdout.strip()}")
    return archive


def _checked(config: Mapping[str, Any] | None) -> dict[str, Any]:
    given = {"timeout": _TIMEOUT_S, **(config or {})}
    for name in given:
        if name not in _KEYS:
            raise MlflowException(
                f"the target {_TARGET} knows no '{name}' in the configuration: there are {', '.join(_KEYS)}",
                INVALID_PARAMETER_VALUE,
            )
    try:
        float(given["timeout"])
    except (TypeError, ValueError):
        raise MlflowException(f"timeout={given['timeout']} is no number of seconds", INVALID_PARAMETER_VALUE) from None
    return given


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name:
        raise MlflowException(f"'{name}' is no name of a deployment", INVALID_PARAMETER_VALUE)


def _no_endpoint(endpoint: str | None) -> None:
    if endpoint is not None:
        raise MlflowException(f"the target {_TARGET} has no endpoints: leave '{endpoint}' out", INVALID_PARAMETER_VALUE)


@contextmanager
def _explained() -> Iterator[None]:
    """Raises MlflowException for the errors of this package, and for those of files."""
    try:
        yield
    except ClientError as error:
        _raise(error, next((code for kind, code in _CODES.items() if isinstance(error, kind)), INTERNAL_ERROR))
    except (PybackendError, OSError) as error:
        _raise(error, INVALID_PARAMETER_VALUE)


def _raise(error: Exception, code: int) -> NoReturn:
    raise MlflowException(str(error), code) from error
