"""``pybackend check``: validates the models of a repository without starting any of them."""

import asyncio
import json
from collections.abc import Sequence

from pybackend.cli.command_line import parse_with_serve_flags
from pybackend.cli.command_parser import CommandParser
from pybackend.cli.output import counted, print_text, wrapped
from pybackend.cli.repository_arguments import refuse_bare_models, with_single_models
from pybackend.errors import ServerError
from pybackend.observability.log_lines import one_line
from pybackend.repository.layout import scan_repositories
from pybackend.settings import Settings
from pybackend_tools.doctor.model_checks import ModelReport, check_models, model_host
from pybackend_tools.importing.detection import refusal_of


def make_parser() -> CommandParser:
    """The command line behind ``pybackend check``, without the flags of ``serve``."""
    parser = CommandParser(
        prog="pybackend check",
        usage="pybackend check [--json] [--strict] [--FLAG[=VALUE]]... REPOSITORY",
        description="Validates the models of a repository, or one model, without running their code: configurations, versions, "
        "model files, environments, ensembles, labels and warm-up.",
        epilog="The flags of `pybackend serve` work: give those of the server. Exit status: 0 if there are no errors (with --strict, "
        "no warnings either), 1 otherwise.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    return parser


def run_check(arguments: Sequence[str]) -> int:
    """Run the command and return the exit status."""
    parser = make_parser()
    given, settings = parse_with_serve_flags(parser, arguments)
    settings = with_single_models(settings)
    refuse_bare_models(settings)
    if settings.cloud_repositories.urls:
        raise ServerError(
            f"`pybackend check` reads local directories: download {settings.cloud_repositories.urls[0]} first, or use `pybackend doctor`"
        )
    if not settings.places:
        parser.refuse_with("Name a directory of models: `pybackend check REPOSITORY`")
    reports = asyncio.run(_check(settings))
    errors, warnings = (sum(len(getattr(report, kind)) for report in reports) for kind in ("errors", "warnings"))
    models = sum(bool(report.name) for report in reports)
    if not models:
        raise ServerError(
            f"found no model in {', '.join(map(str, settings.places))}. A model is a directory <model>/<version>/model.py there"
        )
    if given.json:
        documents = [report.to_document() for report in reports]
        print_text(
            json.dumps({"models": documents, "errors": errors, "warnings": warnings}, ensure_ascii=False, indent=2)
        )
    else:
        lines = [line for report in reports for line in _lines(report)]
        print_text(
            "\n".join(
                [*lines, f"{counted(models, 'model')}, {counted(errors, 'error')}, {counted(warnings, 'warning')}"]
            )
        )
    return int(errors > 0 or (given.strict and warnings > 0))


async def _check(settings: Settings) -> list[ModelReport]:
    scan = scan_repositories(settings.repositories, settings.model_directories, namespacing=settings.model_namespacing)
    with model_host(settings) as host:
        return await check_models(scan, host, settings, refusal_of)


def _lines(report: ModelReport) -> list[str]:
    name = one_line(report.name) or "repository"
    kinds = {"error": report.errors, "warning": report.warnings, "hint": report.hints}
    findings = [(kind, text) for kind, texts in kinds.items() for text in texts]
    return [line for kind, text in findings for line in wrapped(one_line(text), f"{name}: {kind}: ", "    ")] or [
        f"{name}: ok"
    ]
