"""``pybackend pack environment.yml``: real packages from a channel on this disk, solved, installed, packed, and used
elsewhere."""

import json
import subprocess
import tarfile

import pytest

from pybackend.environment.manifest import host_platform
from pybackend.environment.prefixes import rewrite_prefixes
from tests.support.conda_channel import PLACEHOLDER, write_wheel
from tests.support.packed_environments import ask, manifest, run_pack, second_minor, unpacked

pytestmark = pytest.mark.timeout(300)

UNCHECKED_HASH = b"\x01\x00\x00\x00"


@pytest.fixture(scope="module")
def environment(archive, tmp_path_factory):
    prefix = unpacked(archive, tmp_path_factory.mktemp("unpacked") / "environment")
    rewrite_prefixes(prefix, str(archive))
    return prefix


def test_manifest_says_what_is_inside(archive):
    document = manifest(archive)
    assert document["platform"] == host_platform()
    assert document["python"].startswith(f"3.{second_minor()}.")
    assert document["libc"].startswith("glibc 2.")
    assert document["content_hash"].startswith("blake2b:")
    assert document["variables"] == {"PACKED_BY": "conda"}
    assert document["created_by"].startswith("pybackend ")
    sources = {package["name"]: package["source"] for package in document["packages"]}
    assert {"python", "numpy", "greeter", "awkward"} <= set(sources)
    assert sources["numpy"].startswith("file://")
    assert {record["name"] for record in json.loads(document["lock"])["conda"]} == set(sources)


def test_every_module_is_compiled_and_never_checked_against_its_source(archive):
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        sources = {name for name in names if name.endswith(".py") and "/python3." in name}
        compiled = {name for name in names if name.endswith(".pyc")}
        some = [name for name in sorted(compiled) if "/numpy/" in name or "/json/" in name or "greeter" in name]
        flags = {tar.extractfile(name).read()[4:8] for name in some}
    expected = {
        f"{name.rpartition('/')[0]}/__pycache__/{name.rpartition('/')[2][:-3]}.cpython-3{second_minor()}.pyc"
        for name in sources
    }
    assert some
    assert flags == {UNCHECKED_HASH}
    # A module that names the directory is compiled where it lies at last.
    assert {name.rpartition("/")[2].split(".")[0] for name in expected - compiled} <= {
        "_sysconfigdata__linux_x86_64-linux-gnu"
    } | {name.rpartition("/")[2].split(".")[0] for name in expected if "sysconfigdata" in name}
    assert compiled <= expected


def test_it_runs_where_it_was_unpacked(environment):
    answer = ask(environment, "import sys, numpy, greeter; print(sys.prefix, numpy.ones(3).sum(), numpy.__file__)")
    assert answer == f"{environment} 3.0 {environment}/lib/python3.{second_minor()}/site-packages/numpy/__init__.py"
    assert ask(environment, "import sysconfig; print(sysconfig.get_config_var('prefix'))") == str(environment)
    assert str(environment) in ask(environment, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")


def test_programs_run(environment):
    for name, expected in (("greet", "hello from conda"), ("awkward-script", f"1 {environment}/bin/python")):
        done = subprocess.run(
            [environment / "bin" / name], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
        )
        assert (done.stdout.strip(), done.stderr) == (expected, "")


def test_programs_run_before_prefixes_are_rewritten(archive, tmp_path):
    prefix = unpacked(archive, tmp_path / "e")
    assert (prefix / "bin" / "awkward-script").read_text().startswith("#!/usr/bin/env -S python -E\n")
    path = f"{prefix}/bin:/usr/bin:/bin"
    done = subprocess.run(
        [prefix / "bin" / "awkward-script"], capture_output=True, text=True, check=False, env={"PATH": path}
    )
    assert done.stdout.strip() == f"1 {prefix}/bin/python"


def test_prefixes_in_text_and_binaries(environment):
    assert f"prefix = {environment}\n" in (environment / "share/awkward/conf.ini").read_text()
    content = (environment / "share/awkward/program.bin").read_bytes()
    assert f"{environment}/share/awkward/data.txt\0".encode() in content
    assert PLACEHOLDER.encode() not in content
    assert len(content) == len(b"\x7fNOT\0" + PLACEHOLDER.encode() + b"/share/awkward/data.txt\0end")
    assert content.endswith(b"\0end")


def test_links_and_rights(archive):
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar}
    assert members["share/awkward/link"].linkname == "data.txt"
    assert members["lib/awkward"].linkname == "../share/awkward"
    assert members["share/awkward/hard"].isreg()
    assert {member.mode for member in members.values() if member.isreg()} == {0o644, 0o755}
    assert {member.uid for member in members.values()} == {0}
    assert not [name for name in members if name.startswith("/") or ".." in name.split("/")]


@pytest.mark.thorough
def test_pip_section_over_conda_packages(channel, tmp_path):
    """It is a requirements file with options, relative to the environment.yml, and may replace what conda has
    installed."""
    write_wheel(
        tmp_path / "wheels", "greeter", "2.0", {"greeter.py": "VERSION = 2\n\n\ndef main():\n    print('from pip')\n"}
    )
    write_wheel(tmp_path / "wheels", "extra_one", "1.0", {"extra_one.py": "X = 1\n"})
    (tmp_path / "more.txt").write_text("extra-one\n")
    (tmp_path / "environment.yml").write_text(
        f"channels: [{channel}]\ndependencies:\n- python=3.{second_minor()}\n- greeter\n"
        "- pip: ['--no-index', '--find-links wheels', '-r more.txt', 'greeter==2.0']\n"
    )
    done = run_pack(tmp_path / "environment.yml", "-o", tmp_path / "env.tar.zst", "--lock")
    assert done.returncode == 0, done.stderr
    assert "numpy is not among the packages" in done.stderr
    first = (tmp_path / "env.tar.zst").read_bytes()
    document = _zst_manifest(tmp_path / "env.tar.zst")
    versions = {
        package["name"]: package["version"]
        for package in document["packages"]
        if package["source"].startswith("file:///")
    }
    assert versions["greeter"] in {"1.0", "2.0"}
    prefix = _unpack_zst(tmp_path / "env.tar.zst", tmp_path / "e")
    assert ask(prefix, "import greeter, extra_one; print(greeter.VERSION, extra_one.X)") == "2 1"
    assert ask(prefix, "import importlib.util as u; print(u.find_spec('greeter_old'))") == "None"
    lock = json.loads((tmp_path / "env.lock").read_text())
    assert [line.split()[0] for line in lock["wheels"]] != []
    (tmp_path / "env.tar.zst").unlink()
    again = run_pack(tmp_path / "environment.yml", "-o", tmp_path / "env.tar.zst", "--lock")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "env.tar.zst").read_bytes() == first


def _zst_manifest(archive):
    import io

    import zstandard

    with (
        archive.open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
        tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as tar,
    ):
        return json.load(tar.extractfile(tar.next()))


def _unpack_zst(archive, directory):
    import zstandard

    plain = archive.with_suffix("")
    with archive.open("rb") as file, plain.open("wb") as out:
        zstandard.ZstdDecompressor().copy_stream(file, out)
    return unpacked(plain, directory)


@pytest.mark.thorough
def test_environment_that_is_there_is_packed_as_it_lies(channel, tmp_path):
    """Edits by hand are kept, other environments and conda's cache are not touched, nothing is written into it."""
    from pybackend_tools.pack import conda

    order = conda.CondaOrder(
        [channel.as_uri()], [f"python 3.{second_minor()}.*", "greeter", "awkward"], prefix=tmp_path / "prefix"
    )
    conda.carry_out(order, lambda _done, _total: None)
    edited = next((tmp_path / "prefix").glob("lib/python3.*/site-packages/greeter.py"))
    text = edited.read_text().replace("EDITED = False", "EDITED = True")
    edited.unlink()  # it is a link into conda's cache
    edited.write_text(text)
    before = _listing(tmp_path / "prefix")
    done = run_pack(tmp_path / "prefix", "-o", tmp_path / "env.tgz")
    assert done.returncode == 0, done.stderr
    assert _listing(tmp_path / "prefix") == before
    prefix = unpacked(tmp_path / "env.tgz", tmp_path / "e")
    rewrite_prefixes(prefix, "env.tgz")
    assert ask(prefix, "import greeter; print(greeter.EDITED)") == "True"
    assert f"prefix = {prefix}\n" in (prefix / "share/awkward/conf.ini").read_text()
    assert {package["name"] for package in manifest(tmp_path / "env.tgz")["packages"]} >= {
        "python",
        "greeter",
        "awkward",
    }


def _listing(directory):
    return {
        str(path.relative_to(directory)): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in directory.rglob("*")
        if not path.is_dir()
    }


def test_dry_run_only_looks(channel, tmp_path):
    path = tmp_path / "environment.yml"
    path.write_text(f"channels: [{channel}]\ndependencies: [python=3.{second_minor()}, numpy]\n")
    done = run_pack(path, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing was installed" in done.stdout
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[:-1]}
    assert lines["numpy"][2] == "MB"
    assert [each.name for each in tmp_path.iterdir()] == ["environment.yml"]
