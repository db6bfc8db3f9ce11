"""``pybackend infer``: sends one request to a model and prints the response."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pybackend.cli.command_line import visited, visited_settings
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import divided, print_error, print_text
from pybackend.errors import InferenceError
from pybackend.observability.log_lines import one_line
from pybackend.runner import Serve
from pybackend_client.connection import Connection
from pybackend_client.inference import (
    Output,
    Request,
    Response,
    infer,
    infer_json,
    infer_stream,
    is_decoupled,
    output_names,
)
from pybackend_client.values import json_value, shape_text
from pybackend_tools.connection_flags import access_of, add_connection_flags, add_url, connection_of

_DEFAULT_TIMEOUT_S = 300.0

_EPILOG = """\
values of inputs:
  NAME=[[1, 2], [3, 4]]   JSON: a number, text, a truth value, or lists of them
  NAME=@FILE.npy          an array saved with numpy.save()
  NAME=@FILE.json         JSON from a file
  NAME=@FILE.csv          rows of numbers, below a line of headings or not
  NAME=-                  JSON or an array from standard input
  NAME=some words         text, for an input of type BYTES
  NAME=@photo.jpg         a file's contents as one element, for an input of type BYTES; bytes:photo.jpg is the same

Values get the type and the shape that the model wants: a batch dimension is added, and a flat list is divided, if the
result is certain. Otherwise an error names both shapes.

examples:
  pybackend infer add_sub 'INPUT0=[1, 2, 3, 4]' INPUT1=@right.npy
  pybackend infer add_sub --random
  pybackend infer --repository models add_sub 'INPUT0=[1, 2, 3, 4]' 'INPUT1=[5, 6, 7, 8]'
  pybackend infer --repository models caller X=1 -- --load-model=callee --log-info

exit status: 0 if the model answered, 1 if not
"""


def make_parser() -> CommandParser:
    """The parser of ``infer``'s arguments."""
    parser = CommandParser(
        prog="pybackend infer",
        usage="pybackend infer [--FLAG[=VALUE]]... MODEL [NAME=VALUE]... [-- SERVE_FLAG...]",
        description="Sends one request to a model and prints the response.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model's name")
    add("--input", action="append", default=[], metavar="NAME=VALUE", help="an input (see below), also without --input")
    add("--random", action="store_true", help="random values for inputs that are not given")
    add("--output", action="append", default=[], metavar="NAME", help="request only this output; may be repeated [all]")
    add("--parameter", action="append", default=[], metavar="NAME=VALUE", help="a parameter; may be repeated")
    add("--id", default="", metavar="ID", help="the request's id")
    add("--sequence-id", metavar="ID", help="the request belongs to this sequence: a number or text")
    add("--sequence-start", action="store_true", help="the request starts its sequence")
    add("--sequence-end", action="store_true", help="the request ends its sequence")
    add("--model-version", default="", metavar="N", help="the model's version [the server chooses]")
    add("--json", action="store_true", help="print the whole response as JSON")
    place = parser.add_mutually_exclusive_group()
    add_url(place.add_argument)
    place.add_argument(
        "--repository",
        metavar="DIR",
        help="serve the model from this directory for this one request; flags for `pybackend serve` follow after --",
    )
    add_connection_flags(parser, _DEFAULT_TIMEOUT_S)
    return parser


def run_infer(arguments: Sequence[str], serve: Serve) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    own, flags = divided(arguments)
    given, rest = parser.parse_known_args(own)
    wrong = [word for word in rest if word.startswith("-") or "=" not in word]
    if wrong and not wrong[0].startswith("-"):
        parser.refuse_with(f"Unexpected argument: {wrong[0]}. Write inputs as NAME=VALUE")
    if wrong:
        parser.refuse(wrong[0])
    given.input += rest
    request = _request(given, parser)
    if given.repository is None:
        if flags:
            parser.refuse_with("Flags after -- are for `pybackend serve`: they need --repository=DIR")
        return _ask(connection_of(given, parser), request, as_json=given.json)

    access = access_of(given, parser)
    settings = visited_settings(given.repository, [f"--load-model={given.model}", "--validate-outputs"], flags)
    return visited(
        serve, settings, lambda url: _ask(Connection(url, given.timeout, access=access), request, as_json=given.json)
    )


def _request(given: argparse.Namespace, parser: CommandParser) -> Request:
    parameters = {name: _scalar(text) for name, text in _pairs("--parameter", given.parameter, parser).items()}
    if given.sequence_id is not None:
        number = given.sequence_id.isdecimal()
        parameters["sequence_id"] = int(given.sequence_id) if number else given.sequence_id
    for flag in ("sequence_start", "sequence_end"):
        if getattr(given, flag):
            if given.sequence_id is None:
                parser.refuse_with(f"--{flag.replace('_', '-')} needs --sequence-id=ID")
            parameters[flag] = True
    inputs = _pairs("--input", given.input, parser)
    if list(inputs.values()).count("-") > 1:
        parser.refuse_with("Only one input can come from standard input")
    return Request(
        given.model,
        given.model_version,
        inputs,
        given.output,
        parameters=parameters,
        request_id=given.id,
        fills_up=given.random,
    )


def _pairs(flag: str, texts: Sequence[str], parser: CommandParser) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name, value in parser.pairs(flag, texts):
        if name in pairs:
            parser.refuse_with(f'Bad option: "{flag}". {name} is given twice')
        pairs[name] = value
    return pairs


def _scalar(text: str) -> Any:
    """A number or truth value in JSON; otherwise the text itself."""
    try:
        value = json_value(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def _ask(connection: Connection, request: Request, *, as_json: bool) -> int:
    try:
        if as_json:
            document = infer_json(connection, request)
            outputs, text = document.get("outputs"), json.dumps(document, ensure_ascii=False)
        else:
            response = infer(connection, request)
            outputs, text = response.outputs, "\n".join(response_lines(response))
    except InferenceError:
        if not is_decoupled(connection, request):
            raise
        return _ask_for_stream(connection, request, as_json=as_json)
    print_text(text)
    return 0 if outputs else _complain_of_no_output(connection, request)


def _complain_of_no_output(connection: Connection, request: Request) -> int:
    """Say that a response has no output; returns 1, or 0 if the model has none to give."""
    names = output_names(connection, request)
    if names:
        print_error(
            f"error: the response has no output; the model's outputs are {', '.join(names)}. The server's log may name one that "
            "is misspelt"
        )
    return int(bool(names))


def _ask_for_stream(connection: Connection, request: Request, *, as_json: bool) -> int:
    """Print the responses of a decoupled model as they arrive.

    Returns 1 if one of them is an error, or there is none.
    """
    response, status = None, 0
    for response in infer_stream(connection, request):
        if set(response) == {"error"}:
            print_error(f"error: {response['error']}")
            status = 1
        elif as_json:
            print_text(json.dumps(response, ensure_ascii=False))
        else:
            print_text(event_line(response, request.outputs))
    if response is None:
        print_error("error: the model has ended the stream without a response")
        return 1
    return status


_MOST_VALUES = 24
"""Arrays with more elements show only those at their ends."""

_EDGE = 3
_LONGEST_STRING = 60
_WIDTH = 110
_ABOUT = frozenset({"model_name", "model_version", "id"})


def response_lines(response: Response) -> list[str]:
    """A response: model and version, what the response says of itself, and a line or block per output."""
    document = response.document
    lines = [f"model {document.get('model_name')}, version {document.get('model_version')}"]
    if document.get("id"):
        lines.append(f"id: {one_line(str(document['id']))}")
    lines += [
        f"parameter {one_line(name)}: {json.dumps(value)}" for name, value in document.get("parameters", {}).items()
    ]
    return lines + [line for output in response.outputs for line in _output_lines(output)]


def event_line(event: Mapping[str, Any], names: Sequence[str]) -> str:
    """A response of a stream on one line. ``names``: outputs to show; empty for all."""
    shown = [name for name in event if (name in names if names else name not in _ABOUT)]
    return "  ".join(f"{one_line(name)}: {_shortened(json.dumps(event[name], ensure_ascii=False))}" for name in shown)


def _shortened(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}..."


def _output_lines(output: Output) -> Sequence[str]:
    head = f"{one_line(output.name)}  {output.datatype} {shape_text(output.values.shape)}"
    text = np.array2string(
        output.values,
        threshold=_MOST_VALUES,
        edgeitems=_EDGE,
        max_line_width=_WIDTH,
        separator=", ",
        formatter={"object": _string},
    )
    values = text.splitlines()
    if len(values) == 1 and len(head) + len(text) <= _WIDTH:
        return [f"{head}  {text}"]
    return [head, *(f"  {line}" for line in values)]


def _string(element: object) -> str:
    """An element of a BYTES tensor: quoted text, or bytes in Python's notation if it is not UTF-8."""
    data = element if isinstance(element, bytes) else str(element).encode()
    try:
        text = one_line(json.dumps(data.decode(), ensure_ascii=False))
    except UnicodeDecodeError:
        text = repr(data)
    if len(text) <= _LONGEST_STRING:
        return text
    return f"{text[:_LONGEST_STRING]}... ({len(data)} bytes)"
