"""The metrics page: families of the reference, filled from counters at the moment somebody asks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """One metric family as Prometheus sees it.

    Attributes:
        name: its name.
        kind: ``counter``, ``gauge`` or ``histogram``.
        help: what it is, in one line.
        samples: labels and value of each.
        suffixed: samples with what follows the name in theirs, e.g. ``_sum``.
    """

    name: str
    kind: str
    help: str
    samples: list[tuple[dict[str, str], float]] = field(default_factory=list)
    suffixed: list[tuple[str, dict[str, str], float]] = field(default_factory=list)


def render(families: Iterable[Family]) -> bytes:
    """The text format of Prometheus, version 0.0.4.

    prometheus-client would append ``_total`` to the names of counters, which the reference's dashboards do not expect.
    """
    lines = []
    for family in families:
        text = family.help.replace("\\", r"\\").replace("\n", r"\n")
        lines.append(f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n")
        lines.extend(_line(family.name, labels, value) for labels, value in family.samples)
        lines.extend(_line(family.name + suffix, labels, value) for suffix, labels, value in family.suffixed)
    return "".join(lines).encode()


def _line(name: str, labels: dict[str, str], value: float) -> str:
    text = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
    return f"{name}{{{text}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"


def _number(value: float) -> str:
    return _NOT_FINITE.get(text := repr(float(value)), text)


_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
