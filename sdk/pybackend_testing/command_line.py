"""The command that runs a model once: it reads inputs and prints outputs, log lines and times."""

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from pybackend_testing.errors import ConfigError, HarnessError, InputError, ModelDirectoryError
from pybackend_testing.harness import WAIT_S, ModelHarness
from pybackend_testing.result import Result

SUCCESS, MODEL_FAILED, WRONG_USAGE = 0, 1, 2

_EPILOG = """\
values of --input:
  NAME=@file.npy         an array saved with numpy.save(); file.npy is the same
  NAME=@file.json        JSON from a file
  NAME=@photo.jpg        one string: the contents of any other file; bytes:photo.jpg is the same, for all files
  NAME=text:some words   one string
  NAME=[[1, 2], [3, 4]]  JSON, in the configured datatype; a number, text or truth value is an array of one element

example:
  python -m pybackend_testing models/add_sub --input 'INPUT0=[1, 2, 3, 4]' --input INPUT1=@right.npy

exit status: 0 if all requests succeeded, 1 if the model failed, 2 if the command, an input or a configuration is bad
"""


class _Usage(Exception):
    """The command line is wrong; the message says why."""


def main(arguments: "Sequence[str]") -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except _Usage as error:
        status, message = WRONG_USAGE, str(error)
    except InputError as error:
        status, message = WRONG_USAGE, f"{error}\nInputs are given as --input NAME=VALUE, see --help."
    except (ConfigError, ModelDirectoryError) as error:
        status, message = WRONG_USAGE, str(error)
    except HarnessError as error:
        status, message = MODEL_FAILED, str(error)
    sys.stdout.flush()
    print(f"error: {message.rstrip()}", file=sys.stderr)  # noqa: T201  a program that reports to a terminal
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pybackend_testing",
        description="Run a model once, in this process and without a server.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model_dir", help="the model's directory, with config.pbtxt and version directories")
    add = parser.add_argument
    add("--input", action="append", default=[], metavar="NAME=VALUE", help="an input (see below); repeat for each")
    add("--output", action="append", default=[], metavar="NAME=FILE", help="save an output with numpy.save()")
    add("--parameter", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the request")
    add("--requests", type=_positive, default=1, metavar="N", help="send the request N times, one after another")
    add("--request-id", default="", metavar="ID", help="the request's id")
    add("--version", type=int, metavar="N", help="the model's version (default: the highest)")
    add("--config", metavar="FILE", help="a .pbtxt or .json file to use instead of config.pbtxt")
    add("--config-parameter", action="append", default=[], metavar="NAME=TEXT", help="a parameter of the configuration")
    add("--model", action="append", default=[], metavar="NAME=DIR", help="another model that this one may call")
    add("--backend-directory", metavar="DIR", help="directory of Python-based backends")
    add(
        "--environment",
        metavar="PATH",
        help="archive or directory to run it in (default: EXECUTION_ENV_PATH); or: here",
    )
    add("--wait", type=float, default=WAIT_S, metavar="S", help="seconds to wait for a response (default: %(default)g)")
    add("--no-strict", action="store_true", help="warn about outputs that do not match the configuration, do not fail")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _run(options: argparse.Namespace) -> int:
    inputs = {name: _input(name, value) for name, value in _pairs("--input", options.input)}
    parameters = {name: _scalar(value) for name, value in _pairs("--parameter", options.parameter)}
    files = dict(_pairs("--output", options.output))
    harness = ModelHarness(
        options.model_dir,
        version=options.version,
        config=options.config,
        parameters=dict(_pairs("--config-parameter", options.config_parameter)),
        models=dict(_pairs("--model", options.model)),
        backend_directory=options.backend_directory,
        environment=options.environment,
        strict=not options.no_strict,
        wait_s=options.wait,
    )
    results: List[Result] = []
    try:
        began = time.perf_counter()
        harness.open()
        load_s = _duration(time.perf_counter() - began)
        with ExitStack() as stack:
            stack.push(harness)  # closes it; opening was timed
            _check_outputs(harness, files)
            _say(
                f"model {harness.name}, version {harness.version}, instance {harness.instance_name}: loaded in {load_s}"
            )
            times: List[float] = []
            for _ in range(options.requests):
                began = time.perf_counter()
                results = _ask(harness, inputs, parameters, options.request_id)
                times.append(time.perf_counter() - began)
            _report(results, times)
            _save(results, files)
    finally:
        for line in harness.logs:
            _say(f"log: {line}")
    return MODEL_FAILED if any(result.error is not None for result in results) else SUCCESS


def _ask(harness: ModelHarness, inputs: Dict[str, Any], parameters: Dict[str, Any], request_id: str) -> List[Result]:
    if harness.decoupled:
        return harness.stream(inputs, parameters=parameters, request_id=request_id).collect()
    return [harness.infer(inputs, parameters=parameters, request_id=request_id)]


# --- Arguments ------------------------------------------------------------------------------------------------------


def _pairs(option: str, texts: "Sequence[str]") -> List[Tuple[str, str]]:
    pairs: Dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise _Usage(f"{option} {text}: expected NAME=VALUE")
        if name in pairs:
            raise _Usage(f"{option} {name} is given twice")
        pairs[name] = value
    return list(pairs.items())


def _input(name: str, value: str) -> Any:
    if value.startswith("text:"):
        return [value[len("text:") :]]
    if value.startswith("bytes:"):
        return [_contents(name, value[len("bytes:") :])]
    path = value[1:] if value.startswith("@") else ""
    if value.endswith(".npy"):
        return _array(name, path or value)
    if path and not path.endswith(".json"):
        return [_contents(name, path)]
    try:
        parsed = json.loads(_contents(name, path) if path else value)
    except ValueError:
        hint = f". There is a file of that name: write @{value} for its contents" if os.path.exists(value) else ""
        raise _Usage(f"--input {name}={value}: this is neither @FILE, nor text:..., nor JSON{hint}") from None
    if parsed is None or isinstance(parsed, dict):
        raise _Usage(f"--input {name}={value}: expected a JSON list, number, text or truth value")
    return parsed if isinstance(parsed, list) else [parsed]


def _array(name: str, path: str) -> "np.ndarray":
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise _Usage(f"--input {name}={path}: there is no such file") from None
    except (OSError, ValueError, EOFError) as error:
        advice = ". Strings must be saved as an array of dtype S or U" if "pickle" in str(error) else ""
        raise _Usage(f"--input {name}={path}: it cannot be read as an array: {error}{advice}") from None
    return array


def _contents(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _Usage(f"--input {name}: cannot read {path}: {error.strerror}") from None


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float, str)) else text


def _check_outputs(harness: ModelHarness, files: Dict[str, str]) -> None:
    known = [tensor["name"] for tensor in harness.config["output"]]
    for name in files:
        if name not in known:
            raise _Usage(f"--output {name}: model '{harness.name}' has no such output; it has {', '.join(known)}")


# --- What is printed ------------------------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  a program that reports to a terminal


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _report(results: List[Result], times: List[float]) -> None:
    for number, result in enumerate(results, 1):
        if len(results) != 1:
            _say(f"response {number} of {len(results)}:")
        if result.error is not None:
            _say(f"error {result.error.code().name}: {result.error.message().rstrip()}")
            continue
        for name, array in result.outputs.items():
            dtype = "BYTES" if array.dtype == object else str(array.dtype)
            _say(f"{name}: {dtype} {list(array.shape)} {_preview(array)}")
        if result.parameters:
            _say(f"parameters: {json.dumps(result.parameters)}")
    if not results:
        _say("no responses")
    if len(times) == 1:
        _say(f"took {_duration(times[0])}")
    else:
        ordered = sorted(times)
        _say(
            f"{len(times)} requests: median {_duration(ordered[len(ordered) // 2])}, fastest {_duration(ordered[0])}, "
            f"slowest {_duration(ordered[-1])}"
        )


def _preview(array: "np.ndarray") -> str:
    text = np.array2string(array, threshold=12, edgeitems=3, separator=", ", max_line_width=10_000)
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:200]} ..."


def _save(results: List[Result], files: Dict[str, str]) -> None:
    answers: List[Result] = [result for result in results if result.error is None]
    for name, path in files.items():
        arrays = [result.outputs[name] for result in answers if name in result.outputs]
        if len(arrays) != 1:
            _say(f"{name} is not saved: {len(arrays)} responses have it")
            continue
        array: Optional[np.ndarray] = arrays[0]
        if array is not None and array.dtype == object:
            array = array.astype(np.bytes_)  # numpy.save() would pickle objects
        try:
            with open(path, "wb") as file:
                np.save(file, array)  # type: ignore[arg-type]
        except OSError as error:
            raise _Usage(f"--output {name}={path}: {error.strerror}") from None
        _say(f"{name} is saved in {path}")
