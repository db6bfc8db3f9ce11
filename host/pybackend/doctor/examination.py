"""The whole examination, layer by layer."""

from __future__ import annotations

from pathlib import Path

from pybackend.doctor import machine, trial
from pybackend.doctor.finding import Finding, Status


async def examine(environment_cache: Path) -> list[Finding]:
    """Check every layer; checks that need a process are skipped where none can run."""
    findings = [machine.python(), machine.kernel(), machine.descriptors(), machine.processes(), machine.shared_memory()]
    if all(finding.status is not Status.FAIL for finding in findings):
        findings += await trial.examine()
    return [*findings, machine.environment_cache(environment_cache), machine.packing(), machine.gpus()]
