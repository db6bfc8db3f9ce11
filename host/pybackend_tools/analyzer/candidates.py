"""The fields of a configuration that an analysis varies, and how a choice is written into config.pbtxt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from pybackend.modelconfig.parser import format_config_text, parse_config_text

THREADS = {
    "litert": ("NUM_THREADS",),
    "onnxruntime": ("intra_op_thread_count",),
    "openvino": ("INFERENCE_NUM_THREADS",),
    "pytorch": ("INTRA_OP_THREAD_COUNT", "NUM_THREADS"),
    "tensorflow": ("TF_NUM_INTRA_THREADS",),
    "transformers": ("INTRA_OP_THREAD_COUNT",),
}
"""The names of the parameter that sets the threads of an instance, by backend; the first one wins."""

_BATCHING, _INSTANCES, _SIZE, _PARAMETERS = "dynamic_batching", "instance_group", "max_batch_size", "parameters"

_TOKENS = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[][{}<>:;,]|[^][{}<>:;,\s"'#]+""")
"""Comments, strings, punctuation and words of protobuf's text format."""

_OPENING, _CLOSING, _SEPARATORS = frozenset("{<["), frozenset("}>]"), frozenset(":;,")


@dataclass(frozen=True)
class Candidate:
    """A choice for one model."""

    instances: int
    max_batch_size: int
    delay_us: int | None = None  # how long a batch may wait for more requests; None for no dynamic batching
    preferred: int | None = None  # a batch of this size does not wait
    threads: int | None = None  # of an instance; None leaves them to the backend

    def __str__(self) -> str:
        said = [f"{self.instances} instance{'s' if self.instances > 1 else ''}"]
        if self.delay_us is not None:
            wait = f" that wait up to {self.delay_us} us" if self.delay_us else ""
            said.append(f"batches of up to {self.max_batch_size}{wait}")
        elif self.max_batch_size:
            said.append("no dynamic batches")
        if self.preferred:
            said.append(f"{self.preferred} preferred")
        if self.threads:
            said.append(f"{self.threads} thread{'s' if self.threads > 1 else ''} each")
        return ", ".join(said)


@dataclass(frozen=True)
class Space:
    """The values to choose from; a list of one leaves nothing to choose."""

    instances: Sequence[int]
    batch_sizes: Sequence[int]
    delays_us: Sequence[int]
    preferred: Sequence[int]
    threads: Sequence[int]

    def of(self, config: Mapping[str, Any]) -> Space:
        """The values for a model with this configuration.

        A model whose configuration says that it takes no batches, or whose requests belong to sequences, gets no
        dynamic batches; ``threads`` are for backends with a parameter for them.
        """
        now = candidate_of(config)
        batches = now.max_batch_size > 0 and "sequence_batching" not in config
        sizes = self.batch_sizes or sorted({*_powers(max(64, now.max_batch_size)), now.max_batch_size})
        return Space(
            self.instances,
            sizes if batches else [now.max_batch_size],
            self.delays_us if batches else [],
            self.preferred if batches else [],
            self.threads if _thread_parameters(config) else [],
        )

    def choices(self, present: Candidate) -> Iterator[Candidate]:
        """All candidates of a model."""
        batches: list[tuple[int, int | None, int | None]] = [(present.max_batch_size, None, None)]
        for size, delay_us, preferred in product(self.batch_sizes, self.delays_us, (None, *self.preferred)):
            if preferred is None or preferred <= size:
                batches.append((size, delay_us, preferred))
        for instances, batching, threads in product(self.instances, batches, (None, *self.threads)):
            yield Candidate(instances, *batching, threads)


def _powers(most: int) -> Iterator[int]:
    size = 2
    while size <= most:
        yield size
        size *= 2


def candidate_of(config: Mapping[str, Any]) -> Candidate:
    """The choice that a complete configuration has made."""
    batching = config.get(_BATCHING)
    parameters = config.get(_PARAMETERS, {})
    given = (parameters[name]["string_value"] for name in _thread_parameters(config) if name in parameters)
    threads = next(given, "")
    return Candidate(
        sum(max(1, group.get("count", 1)) for group in config.get(_INSTANCES, ())) or 1,
        config.get(_SIZE, 0),
        None if batching is None else int(batching.get("max_queue_delay_microseconds", 0)),
        next(iter((batching or {}).get("preferred_batch_size", ())), None),
        int(threads) if threads.isdecimal() else None,
    )


def _thread_parameters(config: Mapping[str, Any]) -> Sequence[str]:
    backend = config.get("backend") or config.get("platform", "").partition("_")[0]
    return THREADS.get(backend, ())


def override(config: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """The configuration with this choice."""
    changed: dict[str, Any] = deepcopy(dict(config))
    group = next(iter(changed.get(_INSTANCES, ())), {"kind": "KIND_CPU"})
    changed[_INSTANCES] = [{**group, "count": candidate.instances}]
    changed[_SIZE] = candidate.max_batch_size
    if candidate.delay_us is None:
        changed.pop(_BATCHING, None)
    else:
        changed[_BATCHING] = {
            **changed.get(_BATCHING, {}),
            "max_queue_delay_microseconds": candidate.delay_us,
            "preferred_batch_size": [candidate.preferred] if candidate.preferred else [],
        }
    parameters = changed.pop(_PARAMETERS, {})
    names = _thread_parameters(config)
    parameters = {name: value for name, value in parameters.items() if name not in names}
    if candidate.threads is not None:
        parameters[names[0]] = {"string_value": str(candidate.threads)}
    return {**changed, _PARAMETERS: parameters} if parameters else changed


def edited(text: str, config: Mapping[str, Any], candidate: Candidate) -> str:
    """The text of a config.pbtxt with this choice. The rest stays as its author wrote it.

    ``config``: the complete configuration that the server made of the text.
    """
    before = parse_config_text(text, "config.pbtxt")
    backend = {name: config.get(name, "") for name in ("backend", "platform")}
    now, after = candidate_of(config), override({**before, **backend}, candidate)
    changes = {
        _SIZE: candidate.max_batch_size != now.max_batch_size,
        _INSTANCES: candidate.instances != now.instances,
        _BATCHING: (candidate.delay_us, candidate.preferred) != (now.delay_us, now.preferred),
        _PARAMETERS: candidate.threads != now.threads,
    }
    for name in [name for name, changed in changes.items() if changed]:
        text = _replaced(text, name, format_config_text({name: after[name]}) if name in after else "")
    return text


def _replaced(text: str, name: str, written: str) -> str:
    """The text with a field instead of all of this name, in the place of the first; without one, at the end."""
    spans = list(_spans(text, name))
    if not spans:
        return f"{text.rstrip()}\n{written}".lstrip() if written else text
    for start, end in reversed(spans[1:] if written else spans):
        line_ends = text[end : end + 1] == "\n" and (not start or text[start - 1] == "\n")
        text = text[:start] + text[end + line_ends :]
    if not written:
        return text
    start, end = spans[0]
    return text[:start] + written.rstrip("\n") + text[end:]


def _spans(text: str, name: str) -> Iterator[tuple[int, int]]:
    """Where the fields of this name begin and end, of those at the first level."""
    depth, begun, field = 0, 0, ""
    for token in _TOKENS.finditer(text):
        word = token[0]
        depth += (word in _OPENING) - (word in _CLOSING)
        if depth or word.startswith("#") or word in _SEPARATORS:
            continue
        if field:
            if field == name:
                yield begun, token.end()
            field = ""
        elif not word.startswith(('"', "'")):  # a string goes on
            begun, field = token.start(), word
