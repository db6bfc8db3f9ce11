"""What the documentation says about code is so."""

import ast
import dataclasses
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

import pybackend_http2 as http2
from pybackend.cli.process_setup import GC_THRESHOLD
from pybackend.frontend import flow, listener
from pybackend.frontend.calls import model_calls, open_bytes
from pybackend.frontend.http import connection, infer_body, request_reader
from pybackend.inference import tensor
from pybackend.instance import model_instance as backoff
from pybackend.instance import prefetch, services, session, settings
from pybackend.ipc import channel, stub_messages
from pybackend.model.ensemble import run as ensemble_run
from pybackend.modelconfig import options
from pybackend.observability import custom_metrics
from pybackend.protocol import infer_plan
from pybackend.protocol.json import large_request
from pybackend.protocol.json import outline as json_outline
from pybackend.protocol.json import pieces as json_pieces
from pybackend_wire import messages

ROOT = Path(__file__).resolve().parents[2]


def _text(page):
    """A page, as if its paragraphs were one line each."""
    return " ".join((ROOT / "docs" / f"{page}.md").read_text().split())


def test_the_map_leads_to_every_page_of_the_manual():
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([a-z]+/[\w-]+\.md)", (docs / "map.md").read_text()))
    parts = ("authors", "frameworks", "operators", "reference")
    assert {str(page.relative_to(docs)) for part in parts for page in (docs / part).glob("*.md")} - linked == set()


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("hot-path", f"Bodies up to {infer_body.SMALL_BODY_BYTES // 1024} KB are collected"),
        ("hot-path", f"waits, up to {connection.MAX_WAITING_BYTES // 1024} KB, and then reading pauses"),
        ("hot-path", f"Tensors up to {messages.INLINE_BYTES // 1024} KB"),
        ("hot-path", f"at most {prefetch.MOST_PREFETCHED} executions"),
        ("hot-path", f"that has run for {prefetch.SLOW_NS // 1_000_000} ms"),
        ("hot-path", f"Outputs above {infer_plan.SMALL_BYTES // 1024} KB"),
        ("hot-path", f"every {GC_THRESHOLD:,} container allocations"),
        ("states", f"Not more than about {channel.MESSAGES_AT_ONCE} messages"),
        ("states", f"waits {backoff.FIRST_BACKOFF_S} s before the next one"),
        ("states", f"up to {backoff.LONGEST_BACKOFF_S:.0f} s."),
        ("states", f"when it is {flow.STALLED_SECONDS} s behind"),
        ("hot-path", f"above {large_request.LARGE_JSON_BYTES >> 10} KB is read"),
        ("hot-path", f"more than {json_pieces.LARGEST_WHOLE_BYTES >> 10} KB of tensor as JSON"),
        ("processes", {3: "has three seconds to exit"}[int(session.EXIT_GRACE_S)]),
    ],
)
def test_numbers_of_the_architecture_pages_are_those_of_the_code(page, sentence):
    assert sentence in _text(f"architecture/{page}")


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("architecture/calls", f"more than {model_calls.MOST_BACKLOG_BYTES >> 20} MB of messages and tensors wait"),
        ("architecture/calls", f"nobody waits for more than {settings.READINESS_LIMIT_S:.0f} seconds"),
        ("architecture/memory", f"Copies of {tensor.LARGE_COPY_BYTES >> 20} MB and more"),
        ("architecture/states", {10: "after [ten restarts]"}[options.DEFAULT_RESTART_LIMIT]),
        ("authors/bls", f"Tensors of {tensor.LARGE_COPY_BYTES >> 20} MB and more"),
        ("authors/decoupled", f"{model_calls.MOST_BACKLOG_BYTES >> 20} MB of messages and tensors wait for it"),
        ("authors/decoupled", f"outputs above {messages.INLINE_BYTES >> 10} KB count towards its"),
        (
            "authors/ensembles",
            f"while a step behind it has {ensemble_run.MOST_INFLIGHT} requests of this one request",
        ),
        ("authors/life-cycle", f"takes longer than {settings.READINESS_LIMIT_S:.0f} seconds"),
        ("authors/life-cycle", f"After {options.DEFAULT_RESTART_LIMIT} restarts in a row"),
        ("operators/limits", f"| {model_calls.MOST_OPEN_CALLS:,} |"),
        ("operators/limits", f"| {open_bytes.MOST_OPEN_BYTES >> 20} MB | the call raises |"),
        ("operators/limits", f"| {stub_messages.MOST_ITEMS:,} | its process is killed |"),
        ("operators/limits", f"| {stub_messages.MOST_CONFIG_BYTES >> 20} MB | the model is not loaded |"),
        ("operators/limits", f"all but {listener.LARGEST_RESERVE:,} if that is more"),
        ("operators/limits", f"| {custom_metrics.MOST_PAGE_BYTES >> 20} MB of the metrics page"),
        ("operators/limits", f"| {model_calls.MOST_BACKLOG_BYTES >> 20} MB, then models that stream to it wait |"),
        (
            "operators/limits",
            f"| {services.MOST_UNREAD_BYTES >> 20} MB per process, {services.MOST_UNREAD_OF_MODEL_BYTES >> 20} MB for",
        ),
        ("operators/limits", f"| {channel.MOST_BACKLOG_BYTES >> 20} MB | the process is killed |"),
        ("operators/limits", f"has not taken yet | {messages.STREAM_WINDOW}, beside the last one |"),
        ("authors/ensembles", f"up to {messages.STREAM_WINDOW} responses more"),
        ("architecture/calls", f"may be {messages.STREAM_WINDOW} responses (`STREAM_WINDOW`) ahead of the host"),
        ("operators/limits", f"| {flow.LOWEST_RATE_BYTES_PER_S >> 10} KB a second on average, and never more than"),
        ("operators/limits", f"more than {flow.STALLED_SECONDS} s behind |"),
        ("operators/limits", f"sending less than {flow.SLOW_RATE_BYTES_PER_S >> 10} KB a second for"),
        ("operators/limits", {5: "for five seconds, and"}[flow.SLOW_AFTER_SECONDS]),
        ("operators/limits", f"the data of its tensors | {json_outline.LARGEST_SKELETON_BYTES >> 20} MB |"),
        ("operators/limits", f"| dimensions of a shape | {tensor.MOST_DIMS} |"),
        ("operators/limits", f"(they are ignored) | {request_reader.MOST_TRAILER_BYTES >> 10} KB |"),
    ],
)
def test_numbers_of_other_pages_are_those_of_the_code(page, sentence):
    assert sentence in _text(page)


def test_bounds_of_http2_are_those_of_the_code():
    rows = re.findall(
        r"^\| `(\w+)` \| ([\d,]+|none) \|", (ROOT / "docs/architecture/http2.md").read_text(), re.MULTILINE
    )
    assert rows == [
        (field.name, "none" if field.default is None else f"{field.default:,}")
        for field in dataclasses.fields(http2.Config)
    ]


SOURCE_NAME = re.compile(r"`((?:[a-z_]+/)*[a-z_0-9]+\.py|[A-Z][A-Za-z0-9]+(?:\.[a-z_]\w*)?)`")
ELSEWHERE = frozenset(
    {
        "BufferedProtocol",
        "FileDescriptorSet",
        "ModelInferRequest",
        "TritonPythonModel",
        "TritonPythonModel.execute",
        "model.py",
    }
)
"""Names in the architecture pages that are of other projects, or of models."""


def test_names_in_the_architecture_pages_are_in_the_source():
    sources = [path for folder in ("host", "stub", "sdk", "tests") for path in (ROOT / folder).rglob("*.py")]
    files = {"/".join(path.parts[-depth:]) for path in sources for depth in range(1, 7)}
    places = defaultdict(list)
    for text in map(Path.read_text, sources):
        for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE):
            places[name].append(text)

    def has(owner, member):
        for node in (node for text in places[owner] for node in ast.walk(ast.parse(text))):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                for each in node.body:
                    names = getattr(each, "targets", [getattr(each, "target", each)])
                    if any(member in {getattr(name, "id", None), getattr(name, "name", None)} for name in names):
                        return True
        return False

    unknown = {}
    for page in sorted((ROOT / "docs" / "architecture").rglob("*.md")):
        for name in SOURCE_NAME.findall(page.read_text()):
            owner, _, member = name.partition(".")
            known = name in files if name.endswith(".py") else owner in places and (not member or has(owner, member))
            if not known and name not in ELSEWHERE and not owner.isupper():
                unknown.setdefault(page.name, set()).add(name)
    assert unknown == {}


REFERENCE = re.compile(r":(?:class|meth|mod|func|data|attr):`~?(pybackend[\w.]*)`")


def test_references_in_docstrings_lead_somewhere():
    sources = [path for folder in ("host", "stub", "sdk") for path in (ROOT / folder).rglob("*.py")]
    references = {name for path in sources for name in REFERENCE.findall(path.read_text())}
    assert {name for name in references if not _leads_somewhere(name)} == set()


def _leads_somewhere(name):
    """Whether it is a module, an object of one, or what one of its classes has."""
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split(".") if rest else ():
        if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
            try:
                importlib.import_module(f"{found.__name__}.{part}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, part, None)
    return True


def test_the_overview_has_every_room_of_the_server_in_the_order_of_imports():
    contract = re.search(
        r'containers = \["pybackend"\].*?layers = \[(.*?)\n\]', (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    layers = [re.findall(r"\w+", layer) for layer in re.findall(r'"([^"]+)"', contract[1])]
    page = (ROOT / "docs/architecture/overview.md").read_text().split("| Rooms of `pybackend` | For |")[1]
    rows = [re.findall(r"`(\w+)`", row) for row in re.findall(r"^\| ([^|]*`) \|", page, re.MULTILINE)]
    place = {room: number for number, row in enumerate(rows) for room in row}
    order = [place.get(room, room) for layer in layers if layer != ["__main__"] for room in layer]
    assert order == sorted(order, key=lambda number: (isinstance(number, str), number))
