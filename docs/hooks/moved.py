"""A hook of MkDocs: where a page used to be, a small one leads to its place; links and bookmarks of old days keep working."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.utils import get_relative_url

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

MOVED = {
    "architecture/failure": "architecture/states/#failure",
    "authors/debugging": "authors/errors/#debugging",
    "authors/import": "authors/models-without-code/#importing-a-model",
    "authors/infer": "authors/development/#sending-one-request",
    "authors/metrics": "authors/logging/#custom-metrics",
    "authors/pb-utils": "authors/model/#the-pb_utils-module",
    "authors/start-up": "authors/life-cycle/#how-processes-start",
    "frameworks/fil": "frameworks/sklearn/#forests-xgboost-lightgbm-treelite-scikit-learn",
    "frameworks/litert": "frameworks/tensorflow/#litert-tensorflow-lite",
    "frameworks/openvino": "frameworks/onnxruntime/#openvino",
    "frameworks/vllm": "frameworks/transformers/#vllm",
    "getting-started-console": "getting-started/#first-steps-in-the-browser",
    "operators/analyze": "operators/optimize/#finding-the-best-configuration",
    "operators/attacks": "operators/security/#attacks",
    "operators/cloud-repositories": "operators/repository/#repositories-in-cloud-storage",
    "operators/configuration": "operators/serve/#settings-variables-and-a-file",
    "operators/environments": "authors/environments/#environment-cache",
    "operators/listeners": "operators/access/#addresses-and-sockets",
    "operators/observe": "operators/metrics/#observe",
    "operators/placement": "performance/#cores-and-resources",
    "operators/python-client": "operators/clients/#a-client-for-python",
    "operators/scaling": "performance/#how-far-it-scales-and-which-knob",
    "operators/tracing": "operators/logging/#traces",
    "reference/perf_analyzer": "operators/clients/#perf_analyzer",
}
"""Addresses of pages that became a part of another page, and that part."""


def on_post_build(config: MkDocsConfig) -> None:
    """Write a page at each old address. The part that a link names is kept, as parts have kept their names."""
    for old, new in MOVED.items():
        target = get_relative_url(new, f"{old}/")
        page = Path(config.site_dir, old, "index.html")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><title>Moved</title><link rel="canonical" href="{target}">'
            f'<script>location.replace(location.hash ? "{target.partition("#")[0]}" + location.hash : "{target}")</script>'
            f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">This page has moved.</a>'
        )
