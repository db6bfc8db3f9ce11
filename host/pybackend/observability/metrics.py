"""The metrics page: families of the reference, filled from counters at the moment somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One metric family as Prometheus sees it."""

    name: str
    kind: str
    help: str
    samples: list[tuple[dict[str, str], float]]


def render(families: Iterable[Family]) -> bytes:
    """The text format of Prometheus, version 0.0.4.

    prometheus-client would append ``_total`` to the names of counters, which the reference's dashboards do not expect.
    """
    lines = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n")
        for labels, value in family.samples:
            text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
            lines.append(
                f"{family.name}{{{text}}} {float(value)!r}\n" if labels else f"{family.name} {float(value)!r}\n"
            )
    return "".join(lines).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
