"""Checks of models: each is prepared as the server prepares it, up to the point where the model's code would run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pybackend.errors import ModelLoadError, PybackendError
from pybackend.model.host import ModelHost
from pybackend.model.version_loader import Rehearsal, rehearse
from pybackend.modelconfig.ensemble import part_names
from pybackend.observability.logging import collected_warnings
from pybackend.repository.candidate import ModelReading, candidates_of, read_model
from pybackend.repository.layout import RepositoryScan, model_directory
from pybackend.repository.model_files import ModelFiles
from pybackend.repository.names import ModelNames
from pybackend.tools.doctor.finding import Finding, fail, not_in_force, ok, warn

NOT_LOADED = "cannot be loaded"
"""The facts about a model that the server would not serve."""


async def examine(
    scan: RepositoryScan, host: ModelHost, files: ModelFiles, *, all_must_load: bool
) -> tuple[list[Finding], int]:
    """Check the layout of repositories and every model in them.

    ``all_must_load``: whether a model that cannot be loaded would end the server.

    Returns:
        The findings, and the number of processes that the models would have.
    """
    findings = [warn("repository", warning, "the server ignores it, or does not start") for warning in scan.warnings]
    if not scan.models and not scan.duplicates:
        places = ", ".join(scan.place_names)
        findings.append(
            warn("repository", f"no model in {places}", "a model is a directory <model>/<version>/model.py there")
        )
    names, stored = ModelNames({}, scan.namespaces), {*scan.models, *scan.duplicates}
    at_start = stored if host.settings.startup_models is None else names.at_start(host.settings.startup_models, stored)
    readings: dict[str, ModelReading | Finding] = {}
    for name in sorted({*scan.models, *at_start}):
        try:
            await files.fetch(name)
            reading = await read_model(model_directory(scan, name), host, namespace=names.split(name)[0])
        except PybackendError as error:
            readings[name] = _unloadable(name, error, is_fatal=all_must_load and name in at_start)
        else:
            reading.note_environment(
                host
            )  # models that share an environment must be known before the first is prepared
            readings[name] = reading
    process_count = 0
    for name, read in readings.items():
        if isinstance(read, Finding):
            findings.append(read)
            continue
        try:
            finding, count = await _prepared(read, host, names, scan.models)
        except PybackendError as error:
            finding, count = _unloadable(name, error, is_fatal=all_must_load and name in at_start), 0
        findings.append(finding)
        process_count += count
    return findings, process_count


async def _prepared(
    reading: ModelReading, host: ModelHost, names: ModelNames, models: Mapping[str, Path]
) -> tuple[Finding, int]:
    name, count, told = reading.full_name, 0, []
    with collected_warnings() as warnings:
        for version, candidate in (await candidates_of(reading, host)).items():
            if reading.config.is_ensemble:
                parts = [names.to_load(part, reading.namespace, models) for part in part_names(reading.config)]
                missing = sorted({*parts} - {*models})
                if missing:
                    raise ModelLoadError(f"the ensemble needs model '{missing[0]}', which is in no repository")
                told.append(f"version {version}: ensemble of {', '.join(dict.fromkeys(parts))}")
                continue
            rehearsal = await rehearse(candidate.source, host)
            count += rehearsal.process_count
            told.append(f"version {version}: {_facts(rehearsal)}")
            warnings += not_in_force(rehearsal.missing)
    found = "; ".join(told)
    return warn(_row(name), found, " ".join(dict.fromkeys(warnings))) if warnings else ok(_row(name), found), count


def _facts(rehearsal: Rehearsal) -> str:
    count, environment = rehearsal.process_count, rehearsal.environment
    python = "the server's Python" if environment is None else f"Python {environment['python']}, {environment['path']}"
    return f"{count} {'process' if count == 1 else 'processes'} on {python}; sandbox {rehearsal.level or 'off'}"


def _unloadable(name: str, error: PybackendError, *, is_fatal: bool) -> Finding:
    make = fail if is_fatal else warn
    return make(_row(name), NOT_LOADED, str(error).strip())


def _row(name: str) -> str:
    return f"model '{name}'"
