"""``pybackend load``, ``unload``, ``status``, ``stack`` and ``traffic``: control the models of a running server."""

import argparse
import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import counted, is_terminal, print_text, table_lines, terminal_size
from pybackend.errors import ServerError
from pybackend.modelconfig.schema import NAMESPACE_SEPARATOR
from pybackend.modelconfig.traffic import SHADOW_FORM, WEIGHTS_FORM, shadow_of, weights_of
from pybackend.observability.log_lines import one_line
from pybackend.spelling import closest
from pybackend_client.connection import control_path, model_path
from pybackend_tools.connection_flags import add_connection_flags, add_url, connection_of

_DEFAULT_TIMEOUT_S = 600.0
_ADVICE = (
    "Start a server with `pybackend serve DIRECTORY --model-control-mode=explicit`, or name another one with --url"
)
_HEADINGS = ("MODEL", "VERSION", "STATE", "REASON")
_NAMESPACE = "NAMESPACE"


def run_load(arguments: Sequence[str]) -> int:
    """Run ``pybackend load`` and return the exit status."""
    parser = control_parser(
        "load", "MODEL [--FLAG[=VALUE]]...", "Loads a model, or brings it up to date, and waits for it."
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model's name")
    add("--config", type=Path, metavar="FILE", help="JSON to use instead of config.pbtxt until the next load")
    add(
        "--file",
        action="append",
        default=[],
        metavar="PATH=FILE",
        help="a file of the model, such as 1/model.py=candidate.py; needs --config, and no other files are used; may be repeated",
    )
    given = parsed(parser, arguments)
    parameters: dict[str, str] = {}
    if given.config is not None:
        parameters["config"] = _read(given.config).decode("utf-8", "replace")
    for path, file in parser.pairs("--file", given.file, "PATH=FILE"):
        parameters[f"file:{path}"] = base64.b64encode(_read(Path(file))).decode()
    _control(given, "load", parameters)
    return _print_rows(given, _rows(given, given.model))


def run_unload(arguments: Sequence[str]) -> int:
    """Run ``pybackend unload`` and return the exit status."""
    parser = control_parser(
        "unload", "MODEL [--FLAG[=VALUE]]...", "Begins to unload a model: it answers the requests it has."
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "--unload-dependents", action="store_true", help="also unload parts that only this ensemble needs"
    )
    given = parsed(parser, arguments)
    _control(given, "unload", {"unload_dependents": given.unload_dependents})
    return _print_rows(given, _rows(given, given.model))


def run_status(arguments: Sequence[str]) -> int:
    """Run ``pybackend status`` and return the exit status."""
    parser = control_parser(
        "status", "[MODEL] [--FLAG[=VALUE]]...", "Lists the models of a running server, and their states."
    )
    parser.add_argument("model", nargs="?", default="", metavar="MODEL", help="only this model")
    parser.add_argument("--ready", action="store_true", help="only ready versions")
    parser.add_argument(
        "--on", choices=("ray",), help="of an application of Ray Serve: its machines, replicas and models"
    )
    given = parsed(parser, arguments)
    if given.on:
        return _show_application(given)
    rows = _rows(given, given.model, only_ready=given.ready)
    if given.model and not rows:
        raise _absent(given)
    return _print_rows(given, rows)


def _show_application(given: argparse.Namespace) -> int:
    """Print the state of an application, and return the exit status."""
    from pybackend_addons.ray.command import show_status

    found = show_status()
    if given.json:
        print_text(json.dumps(found, ensure_ascii=False))
        return 0
    replicas = found["replicas"]
    served = sum(replica["serves"] for replica in replicas)
    wanted = ", ".join(
        f"{pool['min_replicas']} to {pool['max_replicas']}{f' in {name}' if len(found['pools']) > 1 else ''}"
        for name, pool in found["pools"].items()
    )
    print_text(
        f"{'ready' if found['ready'] else 'not ready'}: {served} of {counted(len(replicas), 'replica')} "
        f"({wanted} wanted), generation {found['generation']}, "
        f"{counted(found['entrances'], 'entrance')}, {counted(sum(each['alive'] for each in found['machines']), 'machine')}"
    )
    machines = [("MACHINE", "CPUS", "GPUS", "REPLICAS", "STATE")]
    machines += [
        (
            _machine(each),
            f"{each['cpus']:g}",
            f"{each['gpus']:g}",
            str(sum(replica["node"] == each["node"] for replica in replicas)),
            ("alive" if each["alive"] else "dead") + (", the first" if each["first"] else ""),
        )
        for each in found["machines"]
    ]
    print_text("\n".join(table_lines(machines, left=len(machines[0]))))
    rows = [("REPLICA", "POOL", "MACHINE", "VERSION", "GENERATION", "STATE")]
    rows += [
        (each["name"], each["pool"], _machine(each), each["version"], str(each["generation"]), _state(each))
        for each in replicas
    ]
    print_text("\n".join(table_lines(rows, left=len(rows[0]))))
    models: dict[tuple[str, str], list[str]] = {}
    for replica in replicas:
        for model in replica["models"]:
            versions = models.setdefault((model["name"], model.get("version", "")), [])
            versions.append(model.get("state", "") or "not loaded")
    lines = [("MODEL", "VERSION", "READY ON", "ELSEWHERE")]
    lines += [
        (one_line(name), version or "-", str(states.count("READY")), ", ".join(sorted({*states} - {"READY"})) or "-")
        for (name, version), states in sorted(models.items())
    ]
    print_text("\n".join(table_lines(lines, left=len(lines[0]))))
    return 0


def _machine(row: Mapping[str, Any]) -> str:
    return f"{row['address']} {row['node'][:8]}"


def _state(replica: Mapping[str, Any]) -> str:
    if replica["lags"]:
        return f"lags: {_first_line(replica['lags'])}"
    return "ready" if replica["serves"] else "not ready"


def _absent(given: argparse.Namespace) -> ServerError:
    names = [row["name"] for row in _rows(given, "")]
    if given.model in names:
        return ServerError(f"no version of model '{given.model}' is ready: `pybackend status {given.model}` says why")
    near = closest(given.model, names)
    advice = f"did you mean '{near}'?" if near else "`pybackend status` lists its models"
    return ServerError(f"the server knows no model '{given.model}': {advice}")


def control_parser(command: str, usage: str, description: str) -> CommandParser:
    """A parser with the flags that all commands for a running server share."""
    parser = CommandParser(
        prog=f"pybackend {command}",
        usage=f"pybackend {command} {usage}",
        description=description,
        epilog="exit status: 0 if the server did as requested, 1 if not",
    )
    add_url(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    add_connection_flags(parser, _DEFAULT_TIMEOUT_S)
    return parser


def parsed(parser: CommandParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments, and the ``connection`` that they describe."""
    given = parser.parsed(arguments)
    given.connection = connection_of(given, parser, _ADVICE)
    return given


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServerError(f"cannot read {path}: {error.strerror}") from None


def _control(given: argparse.Namespace, action: str, parameters: dict[str, Any]) -> None:
    given.connection.post_json(f"{control_path(given.model)}/{action}", {"parameters": parameters})


def _rows(given: argparse.Namespace, model: str, *, only_ready: bool = False) -> list[dict[str, str]]:
    rows = given.connection.post_json("/v2/repository/index", {"ready": only_ready})
    return [row for row in rows if model in {"", row["name"]} or _is_full_name(model, row)]


def _is_full_name(text: str, row: dict[str, str]) -> bool:
    """True if a text is the full name of the model in a row, perhaps with a part of the namespace's path only."""
    head, _, name = text.rpartition(NAMESPACE_SEPARATOR)
    namespace = row.get("namespace", "")
    return bool(head) and name == row["name"] and (head == namespace or head in namespace.split("/"))


def _print_rows(given: argparse.Namespace, rows: list[dict[str, str]]) -> int:
    if given.json:
        print_text(json.dumps(rows, ensure_ascii=False))
        return 0
    if not rows:
        print_text("no models")
        return 0
    headings = (*_HEADINGS, _NAMESPACE) if any("namespace" in row for row in rows) else _HEADINGS
    columns = [heading.lower().replace("model", "name") for heading in headings]
    cells = [headings, *(tuple(_first_line(row.get(column, "")) for column in columns) for row in rows)]
    lines = table_lines(cells, left=len(headings))
    width = terminal_size()[0] if is_terminal() else None
    print_text("\n".join(line if width is None or len(line) <= width else f"{line[: width - 3]}..." for line in lines))
    return 0


def _first_line(text: str) -> str:
    return one_line(text.strip().partition("\n")[0]) or "-"


def run_stack(arguments: Sequence[str]) -> int:
    """Run ``pybackend stack`` and return the exit status."""
    parser = control_parser(
        "stack",
        "MODEL [--FLAG[=VALUE]]...",
        "Shows where the threads and coroutines of a model's processes are, that of `execute` first.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    given = parsed(parser, arguments)
    document = given.connection.get(f"{model_path(given.model, '')}/stack")
    if given.json:
        print_text(json.dumps(document, ensure_ascii=False))
        return 0
    texts = [_text(instance) for instance in document["instances"]]
    print_text("\n\n".join(texts) or f"model '{given.model}' has no processes")
    return 0


def _text(instance: Mapping[str, Any]) -> str:
    lines = [f"{one_line(instance['instance'])}, version {instance['version']}: {_doing(instance)}"]
    for stack in instance["stacks"]:
        lines.append(f"  {one_line(stack['title'])}:")
        lines += [
            f"    {one_line(frame['file'])}:{frame['line']} in {one_line(frame['function'])}"
            for frame in stack["frames"]
        ]
    return "\n".join(lines)


def _doing(instance: Mapping[str, Any]) -> str:
    if instance["pid"] is None:
        return f"{instance['state']}, without a process"
    process = f"process {instance['pid']} is {instance['state']}"
    if instance["running"]:
        count = counted(instance["requests"], "request")
        process += f" and has run `execute` for {instance['oldest_s']:.1f} s, for {count}"
    return process if instance["stacks"] else f"{process}; it does not tell where it is"


_NONE = "none"


def run_traffic(arguments: Sequence[str]) -> int:
    """Run ``pybackend traffic`` and return the exit status."""
    parser = control_parser(
        "traffic",
        "MODEL [--weights 1=90,2=10] [--shadow 3=5] [--FLAG[=VALUE]]...",
        "Shows which versions answer requests that name none, and changes it.",
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="the model's name")
    add(
        "--weights",
        type=_weights,
        metavar="VERSION=WEIGHT,...",
        help="the weights of versions, such as 1=90,2=10, or none",
    )
    add("--shadow", type=_shadow, metavar="VERSION=PERCENT", help="the version that gets copies, such as 3=5, or none")
    add("--reset", action="store_true", help="use the rules of the model's configuration again")
    given = parsed(parser, arguments)
    change: dict[str, Any] = {} if given.weights is None else {"weights": given.weights}
    if given.shadow is not None:
        change["shadow"] = given.shadow or None
    if given.reset:
        if change:
            parser.refuse_with("--reset takes the place of --weights and --shadow: leave it out")
        change = {"reset": True}
    path, server = f"{control_path(given.model)}/traffic", given.connection
    document = server.post_json(path, change) if change else server.get(path)
    print_text(json.dumps(document, ensure_ascii=False) if given.json else _table(document))
    return 0


def _weights(text: str) -> dict[str, int]:
    if text == _NONE:
        return {}
    try:
        return {str(version): weight for version, weight in weights_of(text).items()}
    except ValueError:
        raise argparse.ArgumentTypeError(f"Got {text}, expected {WEIGHTS_FORM}, or none") from None


def _shadow(text: str) -> dict[str, Any]:
    if text == _NONE:
        return {}
    try:
        found = shadow_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Got {text}, expected {SHADOW_FORM}, or none") from None
    return {"version": found.version, "percent": found.percent}


def _table(document: dict[str, Any]) -> str:
    lines = [f"version {version}: {percent:g} % of the requests" for version, percent in document["shares"].items()]
    if document["shadow"] is not None:
        lines.append(f"version {document['shadow']['version']}: copies of {document['shadow']['percent']:g} %")
    return "\n".join([*lines, f"by: {document['source']}"])
