"""This interpreter, as if it had been configured otherwise: a program that says so by ``sysconfig``."""

import shlex
import sys
from pathlib import Path

_PROGRAM = """#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$4/bin" && touch "$4/bin/python" && exit
PYTHONPATH={directory}${{PYTHONPATH:+:$PYTHONPATH}} exec {python} "$@"
"""

_AS_BUILT = """
import sys, sysconfig
sys.base_prefix = "/opt/python"
sysconfig.get_config_vars()["CONFIG_ARGS"] = {arguments!r}
"""


def python_built_with(arguments: str, program: Path) -> Path:
    """Write a program that runs this interpreter, of which ``sysconfig`` says that ``configure`` was called with
    arguments.

    It makes environments that are empty, in no time.
    """
    sites = program.parent / f"{program.name}-site"
    sites.mkdir(parents=True)
    (sites / "sitecustomize.py").write_text(_AS_BUILT.format(arguments=arguments))
    program.write_text(_PROGRAM.format(directory=shlex.quote(str(sites)), python=shlex.quote(sys.executable)))
    program.chmod(0o755)
    return program
