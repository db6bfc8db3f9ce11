"""What the documentation says about files, flags and code is so."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pybackend.frontend.bls import calls
from pybackend.frontend.http import infer_body, infer_protocol, serial_protocol
from pybackend.inference import copying
from pybackend.instance import backoff, model_instance, readiness, session
from pybackend.ipc import channel
from pybackend.model import ensemble_run
from pybackend.modelconfig import options
from pybackend.protocol import infer_plan, plan_cache
from pybackend.server import GC_THRESHOLD
from pybackend_wire import messages

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|#)([^)#\s]+)")
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def _name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page):
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_blocks_are_python(page):
    for _, code in BLOCK.findall(page.read_text()):
        try:
            ast.parse(textwrap.dedent(code))
        except SyntaxError as error:
            # A `return` on its own is a fair excerpt of a method.
            assert "outside function" in str(error), f"{error}:\n{code}"  # noqa: PT017  only this kind is excused


def test_flags_of_serve_are_all_documented_and_all_there():
    page = (ROOT / "docs" / "operators" / "serve.md").read_text()
    documented = set(re.findall(r"--[a-z][a-z-]+", page)) - {"--flag", "--help"}
    shown = subprocess.run(
        [sys.executable, "-m", "pybackend", "serve", "--help"], capture_output=True, text=True, check=True
    )
    present = set(re.findall(r"--[a-z][a-z-]+", shown.stdout)) - {"--help"}
    assert documented == present


def test_every_page_is_in_the_navigation():
    navigation = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert navigation == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        (
            "hot-path",
            f"up to {infer_protocol.LARGEST_KNOWN_HEAD_BYTES // 1024} KB; {infer_protocol.MOST_KNOWN_HEADS:,} of them",
        ),
        (
            "hot-path",
            f"up to {plan_cache.LARGEST_HEADER_BYTES // 1024} KB; {plan_cache.MOST_PLANS} for each model version",
        ),
        ("hot-path", f"Bodies up to {infer_body.SMALL_BODY_BYTES // 1024} KB are collected"),
        ("hot-path", f"is kept, up to {serial_protocol.MAX_KEPT_BYTES // 1024} KB, and then reading pauses"),
        ("hot-path", f"Tensors up to {messages.INLINE_BYTES // 1024} KB"),
        ("hot-path", f"at most {model_instance.MOST_PREFETCHED} executions"),
        ("hot-path", f"that has run for {model_instance.SLOW_NS // 1_000_000} ms"),
        ("hot-path", f"Outputs above {infer_plan.SMALL_BYTES // 1024} KB"),
        ("hot-path", f"every {GC_THRESHOLD:,} container allocations"),
        ("failure", f"Not more than about {channel.MESSAGES_AT_ONCE} messages"),
        ("failure", f"waits {backoff.FIRST_BACKOFF_S} s before the next one"),
        ("failure", f"up to {backoff.LONGEST_BACKOFF_S:.0f} s."),
        ("failure", f"after {serial_protocol.STALLED_SECONDS} s without a byte"),
        ("processes", {3: "has three seconds to exit"}[int(session.EXIT_GRACE_S)]),
    ],
)
def test_numbers_of_the_architecture_pages_are_those_of_the_code(page, sentence):
    assert sentence in (ROOT / "docs" / "architecture" / f"{page}.md").read_text()


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("architecture/calls", f"more than {calls.MOST_BACKLOG_BYTES >> 20} MB of messages and tensors wait"),
        ("architecture/calls", f"nobody waits for more than {readiness.READINESS_LIMIT_S:.0f} seconds"),
        ("architecture/memory", f"Copies of {copying.LARGE_COPY_BYTES >> 20} MB and more"),
        ("architecture/failure", {10: "when that was [ten times]"}[options.DEFAULT_RESTART_LIMIT]),
        ("authors/bls", f"Tensors of {copying.LARGE_COPY_BYTES >> 20} MB and more"),
        ("authors/decoupled", f"{calls.MOST_BACKLOG_BYTES >> 20} MB of messages and tensors wait for it"),
        ("authors/decoupled", f"outputs above {messages.INLINE_BYTES >> 10} KB count towards its"),
        ("authors/ensembles", f"while a step behind it has {ensemble_run.MOST_INFLIGHT} requests of this one request"),
        ("authors/life-cycle", f"takes longer than {readiness.READINESS_LIMIT_S:.0f} seconds"),
        ("authors/life-cycle", f"After {options.DEFAULT_RESTART_LIMIT} restarts in a row"),
        ("operators/limits", f"| {calls.MOST_OPEN_CALLS:,} |"),
        ("operators/limits", f"| {calls.MOST_BACKLOG_BYTES >> 20} MB, then those who stream to it wait |"),
    ],
)
def test_numbers_of_other_pages_are_those_of_the_code(page, sentence):
    assert sentence in (ROOT / "docs" / f"{page}.md").read_text()
