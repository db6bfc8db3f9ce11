"""``pybackend traffic``: shows and changes the shares of a model's versions on a running server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pybackend.cli.command_parser import UsageError
from pybackend.cli.control_command import control_parser, parsed
from pybackend.cli.terminal import print_text
from pybackend.modelconfig.traffic import SHADOW_FORM, WEIGHTS_FORM, shadow_of, weights_of

_NONE = "none"


def run_traffic(arguments: Sequence[str]) -> int:
    """Run ``pybackend traffic`` and return the exit status."""
    parser = control_parser(
        "traffic",
        "MODEL [--weights 1=90,2=10] [--shadow 3=5] [--FLAG[=VALUE]]...",
        "Shows which versions answer requests that name none, and changes it.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "--weights",
        type=_weights,
        metavar="VERSION=WEIGHT,...",
        help="the weights of versions, such as 1=90,2=10, or none",
    )
    parser.add_argument(
        "--shadow", type=_shadow, metavar="VERSION=PERCENT", help="the version that gets copies, such as 3=5, or none"
    )
    parser.add_argument("--reset", action="store_true", help="use the rules of the model's configuration again")
    given = parsed(parser, arguments)
    change: dict[str, Any] = {} if given.weights is None else {"weights": given.weights}
    if given.shadow is not None:
        change["shadow"] = given.shadow or None
    if given.reset:
        if change:
            raise UsageError("--reset takes the place of --weights and --shadow: leave it out", parser.format_usage())
        change = {"reset": True}
    path = f"/v2/repository/models/{quote(given.model, safe='')}/traffic"
    server = given.connection
    if change:
        reply = server.post(path, json.dumps(change).encode(), {"Content-Type": "application/json"})
        document = json.loads(reply.body)
    else:
        document = server.get(path)
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
