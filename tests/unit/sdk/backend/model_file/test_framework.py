"""A framework that is there, and one that is not."""

import json
import sys

import pytest

from pybackend_sdk.backend import require
from pybackend_sdk.error import TritonModelException
from pybackend_wire.installation import install_command


def test_it_is_imported():
    assert require("json", backend="b", extra="e") is json


def test_it_is_missing():
    with pytest.raises(TritonModelException) as caught:
        require("no_such_framework", backend="b", extra="e")
    assert str(caught.value).startswith(
        f"backend 'b' needs the Python package no_such_framework, which {sys.executable} does not have. Make an environment "
        "with `pybackend pack --backend b -o b.tar.gz` and serve with --backend-config=b,environment=b.tar.gz; or install it "
        f"beside the server with {install_command('e')}"
    )


def test_it_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TritonModelException, match=r"cannot import half_installed in .*No module named 'no_such_dep"):
        require("half_installed", backend="b", extra="e")
