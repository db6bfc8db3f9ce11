"""Prefixes of conda-packed environments: rewritten by the host from a list, whatever that list says."""

import os
import stat

import pytest

from pybackend.environment.prefixes import rewrite_prefixes
from pybackend.errors import ModelEnvironmentError

PLACEHOLDER = "/opt/anaconda1anaconda2" + "_placehold" * 20


def environment(tmp_path, records, name="env"):
    """A directory with a list of records, as conda-pack writes it."""
    prefix = tmp_path / name
    (prefix / "bin").mkdir(parents=True)
    listed = ",\n".join(map(repr, records))
    (prefix / "bin" / "conda-unpack").write_text(
        f"#!/usr/bin/env python\nimport os\n_prefix_records = [\n{listed}\n]\nraise SystemExit('nobody runs this')\n"
    )
    return prefix


def test_texts_and_binaries_get_the_directory(tmp_path):
    prefix = environment(tmp_path, [("etc/config", PLACEHOLDER, "text"), ("lib/library.so", PLACEHOLDER, "binary")])
    for name in ("etc", "lib"):
        (prefix / name).mkdir()
    (prefix / "etc" / "config").write_text(f"home={PLACEHOLDER}/share and {PLACEHOLDER}/etc\n")
    content = f"head\0{PLACEHOLDER}/lib\0middle\0{PLACEHOLDER}/a:{PLACEHOLDER}/b\0tail".encode()
    (prefix / "lib" / "library.so").write_bytes(content)
    os.utime(prefix / "lib" / "library.so", (1_600_000_000, 1_600_000_000))
    changed = rewrite_prefixes(prefix, "x")
    assert changed == ["bin/conda-unpack", "etc/config", "lib/library.so"]
    assert (prefix / "etc" / "config").read_text() == f"home={prefix}/share and {prefix}/etc\n"
    binary = (prefix / "lib" / "library.so").read_bytes()
    assert len(binary) == len(content)
    parts = [part for part in binary.split(b"\0") if part]
    assert parts == [b"head", f"{prefix}/lib".encode(), b"middle", f"{prefix}/a:{prefix}/b".encode(), b"tail"]
    assert (prefix / "lib" / "library.so").stat().st_mtime == 1_600_000_000
    assert rewrite_prefixes(prefix, "x") == []
    assert os.listdir(tmp_path) == ["env"]


def test_other_names_of_a_file_keep_its_content(tmp_path):
    """Package managers link files into environments: the original is shared with others."""
    prefix = environment(tmp_path, [("config", PLACEHOLDER, "text")])
    original = tmp_path / "original"
    original.write_text(PLACEHOLDER)
    os.link(original, prefix / "config")
    rewrite_prefixes(prefix, "x")
    assert (original.read_text(), (prefix / "config").read_text()) == (PLACEHOLDER, str(prefix))


def test_compiled_files_of_changed_sources_go(tmp_path):
    prefix = environment(tmp_path, [("lib/data.py", PLACEHOLDER, "text")])
    compiled = prefix / "lib" / "__pycache__"
    compiled.mkdir(parents=True)
    (prefix / "lib" / "data.py").write_text(f"PREFIX = {PLACEHOLDER!r}")
    for name in ("data.cpython-312.pyc", "data.cpython-312.opt-1.pyc", "other.cpython-312.pyc"):
        (compiled / name).write_bytes(b"")
    rewrite_prefixes(prefix, "x")
    assert os.listdir(compiled) == ["other.cpython-312.pyc"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#!/usr/bin/env python -E", "#!{bin}/python -E"),
        ("#!/usr/bin/env python3.12", "#!{bin}/python3.12"),
        ("#!/usr/bin/env -S python -E -s", "#!{bin}/python -E -s"),
        ("#!/usr/bin/env bash", "#!/usr/bin/env bash"),
        ("#!/bin/sh", "#!/bin/sh"),
        ("no script", "no script"),
    ],
    ids=["option", "version", "split", "shell", "sh", "none"],
)
def test_scripts_get_the_interpreter(line, expected, tmp_path):
    prefix = environment(tmp_path, [], "e")
    script = prefix / "bin" / "script"
    script.write_text(f"{line}\nbody\n")
    script.chmod(0o755)
    rewrite_prefixes(prefix, "x")
    first, rest = script.read_text().split("\n", 1)
    if len(expected.format(bin=prefix / "bin")) <= 127:
        assert first == expected.format(bin=prefix / "bin")
    assert rest == "body\n"
    assert stat.S_IMODE(script.stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["d" * 120, "with space"], ids=["long", "space"])
def test_scripts_look_it_up_where_the_kernel_could_not_read_the_line(name, tmp_path):
    prefix = environment(tmp_path, [], name)
    for script, options in (("plain", ""), ("options", " -E")):
        (prefix / "bin" / script).write_text(f"#!/usr/bin/env python{options}\n")
    rewrite_prefixes(prefix, "x")
    found = [(prefix / "bin" / script).read_text() for script in ("plain", "options")]
    assert found == ["#!/usr/bin/env python\n", "#!/usr/bin/env -S python -E\n"]


@pytest.mark.spec("pb-V03")
@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "a/../../secret", "out/secret", "a\0b"])
def test_files_outside_are_refused(path, tmp_path):
    prefix = environment(tmp_path, [(path, "x", "text")])
    (tmp_path / "secret").write_text("x")
    (prefix / "out").symlink_to("..")
    with pytest.raises(ModelEnvironmentError, match="names a file outside"):
        rewrite_prefixes(prefix, "x")
    assert (tmp_path / "secret").read_text() == "x"


def test_links_and_what_is_not_there_are_left_alone(tmp_path):
    prefix = environment(
        tmp_path, [("link", "x", "text"), ("gone", "x", "text"), ("bin", "x", "text"), ("f/g", "x", "text")]
    )
    (tmp_path / "secret").write_text("x")
    (prefix / "link").symlink_to(tmp_path / "secret")
    (prefix / "f").write_text("x")
    rewrite_prefixes(prefix, "x")
    assert (tmp_path / "secret").read_text() == "x"


def test_a_directory_that_is_too_long_is_refused_with_both_lengths(tmp_path):
    prefix = environment(tmp_path, [("lib", "/short", "binary")])
    (prefix / "lib").write_bytes(b"/short\0")
    message = f"'lib' has room for a directory of 6 bytes, this one has {len(str(prefix))}; name a shorter one by"
    with pytest.raises(ModelEnvironmentError, match=message):
        rewrite_prefixes(prefix, "x")


@pytest.mark.parametrize(
    "text",
    [
        "[\n__import__('os').system('touch evil')\n]",
        "[\n('a', 'b')\n]",
        "[\n('a', '', 'text')\n]",
        "[\n('a', 'b', 'other')\n]",
        "[\n(1, 'b', 'text')\n]",
        "[\n" + "(" * 5000 + "\n]",
        "[\n1\n]",
    ],
    ids=["code", "pair", "empty", "mode", "number", "deep", "scalar"],
)
def test_a_list_that_conda_pack_did_not_write_is_refused_and_not_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prefix = environment(tmp_path, [])
    (prefix / "bin" / "conda-unpack").write_text(f"_prefix_records = {text}\n")
    with pytest.raises(ModelEnvironmentError, match="is not one that conda-pack writes"):
        rewrite_prefixes(prefix, "x")
    assert not (tmp_path / "evil").exists()


def test_environments_without_a_list_have_none(tmp_path):
    (tmp_path / "env").mkdir()
    assert rewrite_prefixes(tmp_path / "env", "x") == []
    prefix = environment(tmp_path, [], "other")
    (prefix / "bin" / "conda-unpack").write_text("print('no list')\n")
    assert rewrite_prefixes(prefix, "x") == []
