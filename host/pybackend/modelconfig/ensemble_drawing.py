"""Draws an ensemble as text and as a Mermaid flowchart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pybackend.modelconfig.ensemble import EnsembleStep, steps_of
from pybackend.modelconfig.schema import ModelConfig


def as_text(config: ModelConfig, remarks: Mapping[str, str]) -> str:
    """One line for each step; steps with the same number may run side by side.

    Args:
        remarks: notes on parts, by model name.
    """
    steps = steps_of(config)
    turns = _turns(steps)
    rows = [("takes", ", ".join(_inputs(config)), "", "")]
    for number in sorted(range(len(steps)), key=turns.__getitem__):
        step = steps[number]
        takes = ", ".join(f"{inner} <- {tensor}" for inner, tensor in step.inputs.items())
        gives = ", ".join(f"{inner} -> {tensor}" for inner, tensor in step.outputs.items())
        rows.append((str(turns[number]), _model(step, remarks), takes, gives))
    rows.append(("gives", ", ".join(tensor.name for tensor in config.outputs), "", ""))
    widths = [max(map(len, column)) for column in zip(*rows[1:-1], strict=True)]
    lines = [f"  {head:5}  {'   '.join(map(str.ljust, cells, widths[1:]))}".rstrip() for head, *cells in rows]
    return "\n".join([config.name, *lines])


def as_mermaid(config: ModelConfig, remarks: Mapping[str, str]) -> str:
    """A flowchart with inputs, steps and outputs as nodes and tensors as edges."""
    lines = (f"    {line}" for line in _mermaid_lines(config, remarks))
    return "\n".join(["---", f"title: {_quoted(config.name)}", "---", "flowchart LR", *lines])


def _mermaid_lines(config: ModelConfig, remarks: Mapping[str, str]) -> Iterator[str]:
    steps = steps_of(config)
    source: dict[str, str] = {}
    for number, (given, text) in enumerate(zip(config.inputs, _inputs(config), strict=True)):
        source[given.name] = f"in{number}"
        yield f"in{number}([{_quoted(text)}])"
    for number, step in enumerate(steps):
        source |= dict.fromkeys(step.outputs.values(), f"step{number}")
        yield f"step{number}[{_quoted(_model(step, remarks))}]"
    made = {tensor: inner for step in steps for inner, tensor in step.outputs.items()}
    for number, step in enumerate(steps):
        for inner, tensor in step.inputs.items():
            label = tensor if tensor in made else inner
            yield f"{source[tensor]} -->|{_quoted(label)}| step{number}"
    for number, output in enumerate(config.outputs):
        yield f"out{number}([{_quoted(output.name)}])"
        yield f"{source[output.name]} -->|{_quoted(made.get(output.name, output.name))}| out{number}"


def _turns(steps: Sequence[EnsembleStep]) -> list[int]:
    """For each step, the length of the longest chain of steps that ends with it."""
    made = {tensor: number for number, step in enumerate(steps) for tensor in step.outputs.values()}
    turns = [0] * len(steps)
    while not all(turns):
        for number, step in enumerate(steps):
            before = [turns[made[tensor]] for tensor in step.inputs.values() if tensor in made]
            if all(before):
                turns[number] = 1 + max(before, default=0)
    return turns


def _inputs(config: ModelConfig) -> list[str]:
    return [f"{tensor.name} (optional)" if tensor.optional else tensor.name for tensor in config.inputs]


def _model(step: EnsembleStep, remarks: Mapping[str, str]) -> str:
    version = f"version {step.model_version}" if step.model_version else ""
    notes = ", ".join(filter(None, (version, remarks.get(step.model_name, ""))))
    return f"{step.model_name} ({notes})" if notes else step.model_name


def _quoted(text: str) -> str:
    """A label without Mermaid syntax."""
    escaped = "".join(each if each.isalnum() or each in " _-.,()" else f"#{ord(each)};" for each in text)
    return f'"{escaped}"'
