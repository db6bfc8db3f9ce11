"""``pybackend stack``: where the processes of a model are now, for a model that hangs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pybackend.cli.control_command import control_parser, parsed
from pybackend.cli.terminal import print_text
from pybackend.observability.log_lines import one_line


def run_stack(arguments: Sequence[str]) -> int:
    """Run ``pybackend stack`` and return the exit status."""
    parser = control_parser(
        "stack",
        "MODEL [--FLAG[=VALUE]]...",
        "Shows where the threads and coroutines of a model's processes are, that of `execute` first.",
    )
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    given = parsed(parser, arguments)
    document = given.connection.get(f"/v2/models/{quote(given.model, safe='')}/stack")
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
        count = instance["requests"]
        process += (
            f" and has run `execute` for {instance['oldest_s']:.1f} s, for {count} request{'' if count == 1 else 's'}"
        )
    return process if instance["stacks"] else f"{process}; it does not tell where it is"
