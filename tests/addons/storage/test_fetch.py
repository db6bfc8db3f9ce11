"""Models come from a server that speaks S3 into local directories, whatever happens on the way."""

import asyncio
import errno
import os
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from pybackend.errors import ModelLoadError, ServerError
from pybackend_addons.storage import bucket, download
from pybackend_addons.storage.bucket import Patience
from pybackend_addons.storage.mirrors import Mirrors
from tests.support.s3_server import BUCKET, CREDENTIALS, Gate, S3Server, s3_server

IMPATIENT = Patience(total_s=0.3, first_pause_s=0.01)
LARGE = os.urandom(3_000_000)


@pytest.fixture(scope="module")
def server():
    with s3_server() as server:
        yield server


@pytest.fixture
def gate(server):
    gate = Gate(server)
    yield gate
    gate.close()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def prefix(request, server):
    """A repository of the test's own, with one model of two versions."""
    prefix = request.node.name
    for path, content in {
        "m/config.pbtxt": "config",
        "m/1/model.py": "one",
        "m/2/model.py": "two",
        "m/2/weights/large.bin": LARGE,
    }.items():
        server.put(f"{prefix}/{path}", content)
    return prefix


class Copy:
    """The mirror of one repository, used as a server uses it."""

    def __init__(self, url: str, cache: Path) -> None:
        self.mirrors = Mirrors([url], cache, IMPATIENT)
        self.alive: list[int] = []
        self.mirrors.in_use = lambda _directory: self.alive
        asyncio.run(self.mirrors.open())

    @property
    def directory(self) -> Path:
        return self.mirrors.directories[0]

    def fetch(self, name: str = "m") -> None:
        asyncio.run(self.mirrors.fetch(name, self._newest))

    def _newest(self, directory: Path, versions: Collection[int]) -> Collection[int]:
        assert directory.name == "m"
        assert (directory / "config.pbtxt").read_text().startswith("config")
        return [max(versions)]

    def files(self) -> dict[str, bytes]:
        files = [path for path in self.directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in files}


@pytest.fixture
def copy(gate, prefix, tmp_path):
    copy = Copy(gate.url(prefix), tmp_path / "cache")
    yield copy
    copy.mirrors.close()
    assert not list((tmp_path / "cache").rglob("*.part"))
    assert not list((tmp_path / "cache" / "rooms").iterdir())


def cached(directory: Path) -> list[Path]:
    files = (directory / "cache" / "objects").rglob("*")
    return [path for path in files if path.is_file() and path.suffix not in {".lock", ".json"}]


WHOLE = {"m/config.pbtxt": b"config", "m/2/model.py": b"two", "m/2/weights/large.bin": LARGE}


def test_only_what_is_served_and_has_changed_is_downloaded(server, gate, prefix, copy):
    copy.fetch()
    assert copy.files() == WHOLE
    assert (copy.directory / "m" / "1").is_dir()
    assert gate.taken() == [f"{prefix}/{path}" for path in sorted(WHOLE)]
    model = copy.directory / "m"
    before = os.stat(model), os.stat(model / "2"), os.stat(model / "config.pbtxt")

    server.put(f"{prefix}/m/config.pbtxt", "config")  # the same content
    copy.fetch()
    assert gate.taken() == []
    server.put(f"{prefix}/m/config.pbtxt", "config of another kind")
    copy.fetch()
    assert gate.taken() == [f"{prefix}/m/config.pbtxt"]
    after = os.stat(model), os.stat(model / "2"), os.stat(model / "config.pbtxt")
    assert [one.st_ino == other.st_ino for one, other in zip(before, after, strict=True)] == [True, True, False]


def test_a_new_version_leaves_the_old_one_until_it_ends(server, prefix, copy, tmp_path):
    copy.fetch()
    server.put(f"{prefix}/m/3/model.py", "three")
    copy.alive = [2]
    copy.fetch()
    assert copy.files() == {**WHOLE, "m/3/model.py": b"three"}
    copy.alive = [3]
    asyncio.run(copy.mirrors.tidy(copy.directory / "m"))
    assert copy.files() == {"m/config.pbtxt": b"config", "m/3/model.py": b"three"}
    assert len(cached(tmp_path)) == 2


def test_a_download_goes_on_where_it_was_cut(gate, prefix, copy):
    gate.cuts[f"{prefix}/m/2/weights/large.bin"] = 2_000_000
    copy.fetch()
    assert copy.files() == WHOLE
    ranges = [asked for key, asked in gate.asked if key.endswith("large.bin")]
    assert ranges[0] == "bytes=0-2999999"
    assert ranges[1].endswith("-2999999")
    assert int(ranges[1].removeprefix("bytes=").partition("-")[0]) >= 1_000_000


def test_etags_may_lack_their_quotation_marks(gate, copy):
    gate.unquoted = True
    copy.fetch()
    assert copy.files() == WHOLE


def test_large_objects_come_in_parts(gate, prefix, copy, monkeypatch):
    monkeypatch.setattr(download, "PART_BYTES", 1_000_000)
    copy.fetch()
    assert copy.files() == WHOLE
    ranges = sorted(asked for key, asked in gate.asked if key.endswith("large.bin"))
    assert ranges == ["bytes=0-999999", "bytes=1000000-1999999", "bytes=2000000-2999999"]


def test_a_server_that_is_gone_leaves_the_old_files(server, gate, prefix, copy):
    copy.fetch()
    server.put(f"{prefix}/m/2/model.py", "new")

    def vanish(key: str) -> None:
        gate.refusal, gate.cuts[key] = (503, "ServiceUnavailable"), 0

    gate.before = vanish
    with pytest.raises(ModelLoadError, match=r"'m/2/model.py' in s3://.* cannot be read") as failed:
        copy.fetch()
    assert failed.value.code.name == "UNAVAILABLE"
    assert copy.files() == WHOLE
    gate.before, gate.refusal = lambda _key: None, None
    copy.fetch()
    assert copy.files() == {**WHOLE, "m/2/model.py": b"new"}


def test_an_object_that_changes_meanwhile_is_downloaded_again(server, gate, prefix, copy):
    def change(key: str) -> None:
        if key.endswith("large.bin"):
            gate.before = lambda _key: None
            server.put(f"{prefix}/m/2/weights/large.bin", "small now")
            server.put(f"{prefix}/m/2/more", "more")

    gate.before = change
    copy.fetch()
    assert copy.files() == {**WHOLE, "m/2/weights/large.bin": b"small now", "m/2/more": b"more"}


def test_a_model_that_never_rests_is_not_loaded(server, gate, prefix, copy):
    count = iter(range(1000))
    gate.before = lambda _key: server.put(f"{prefix}/m/2/model.py", f"{next(count)}")
    with pytest.raises(ModelLoadError, match=r"'m' in s3://.* changes while it is being downloaded"):
        copy.fetch()
    assert copy.files() == {}


def test_a_full_disk_leaves_nothing_half_written(copy, tmp_path, monkeypatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(ModelLoadError, match=r"has no room for \d+ bytes to download: free some, or name another"):
            copy.fetch()
        assert not list((tmp_path / "cache").rglob("*.part"))
    assert copy.files() == {}
    with monkeypatch.context() as patch:
        patch.setattr(download, "SPARE_BYTES", 1 << 62)
        with pytest.raises(ModelLoadError, match="has no room for 6 bytes"):
            copy.fetch()
    copy.fetch()
    assert copy.files() == WHOLE


def test_one_bad_name_does_not_hide_other_models(server, prefix, copy):
    server.put(f"{prefix}/bad/1//model.py", "x")
    copy.fetch()
    digests = asyncio.run(copy.mirrors.digests())
    assert sorted(path.name for path in digests) == ["bad", "m"]
    server.put(f"{prefix}/m/2/model.py", "new")
    again = asyncio.run(copy.mirrors.digests())
    assert {path.name for path in digests if digests[path] != again[path]} == {"m"}
    with pytest.raises(
        ModelLoadError, match=r"'bad' in s3://.* has an object with a name that cannot be a file's path"
    ):
        copy.fetch("bad")


@pytest.mark.parametrize("bad", ["/stray", "//stray", "../stray", "./stray"])
def test_a_bad_name_at_the_top_does_not_hide_the_models(server, prefix, tmp_path, caplog, bad):
    server.put(f"{prefix}/{bad}", "x")
    server.put(f"{prefix}/n/1/model.py", "n")
    copy = Copy(server.url(prefix), tmp_path / "cache")
    try:
        copy.fetch()
        assert copy.files() == WHOLE
        (listing,) = copy.mirrors.listings.values()
        assert listing.names >= {"m", "n"}
        assert {path.name for path in asyncio.run(copy.mirrors.digests())} >= {"m", "n"}
    finally:
        copy.mirrors.close()
    (line,) = [record.message for record in caplog.records if "cannot be a file's path" in record.message]
    assert line.startswith(f"{server.url(prefix)} has an object with a name that cannot be a file's path: ")


def test_a_long_listing_is_named_and_ends(gate, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(bucket, "LINE_S", 0.01)
    monkeypatch.setattr(bucket, "LONGEST_LISTING_S", 0.5)
    gate.answers.clear()
    with pytest.raises(
        ServerError, match=r"the listing of s3://.* has not ended after 0.5 s: name a path in the bucket"
    ):
        Copy(gate.url("models"), tmp_path / "cache")
    assert any(
        record.message.startswith(f"listing {gate.url('models')}: it goes on after") for record in caplog.records
    )
    assert not list((tmp_path / "cache" / "rooms").iterdir())


def test_a_start_without_the_storage_uses_the_cache(gate, prefix, tmp_path, caplog):
    """Also with a model that nobody has loaded, and with one whose cache is damaged: those alone fail."""
    first = Copy(gate.url(prefix), tmp_path / "cache")
    first.fetch()
    first.mirrors.close()
    gate.refusal = (503, "SlowDown")
    copy = Copy(gate.url(prefix), tmp_path / "cache")
    try:
        (listing,) = copy.mirrors.listings.values()
        assert (listing.names, listing.doubt) == ({"m"}, f"{gate.url(prefix)} cannot be read: SlowDown")
        assert 0 < listing.listed_s <= time.time()
        gate.taken()
        copy.fetch()
        assert (copy.files(), gate.taken()) == (WHOLE, [])
        assert "The server starts with the models in its cache" in caplog.text
        assert f"model 'm' is loaded from the cache: {gate.url(prefix)} does not answer" in caplog.text
        with pytest.raises(ModelLoadError, match="SlowDown"):  # an update is what the caller wants
            copy.fetch()
        gate.refusal = None
        asyncio.run(copy.mirrors.look())
        (listing,) = copy.mirrors.listings.values()
        assert listing.doubt == ""
        copy.fetch()
        assert copy.files() == WHOLE
    finally:
        copy.mirrors.close()
    next(path for path in cached(tmp_path) if path.stat().st_size == len(LARGE)).unlink()
    gate.refusal = (503, "SlowDown")
    copy = Copy(gate.url(prefix), tmp_path / "cache")
    try:
        with pytest.raises(ModelLoadError, match="SlowDown"):
            copy.fetch()
    finally:
        copy.mirrors.close()


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_variable_of_other_clients_names_the_server(server, prefix, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, server.address)
    copy = Copy(f"s3://{BUCKET}/{prefix}", tmp_path / "cache")
    try:
        copy.fetch()
        assert copy.files() == WHOLE
    finally:
        copy.mirrors.close()
    monkeypatch.setenv(name, "localhost:9000")
    with pytest.raises(ServerError, match=rf"^{name} is 'localhost:9000', which is no URL of a server: write http://"):
        Mirrors([f"s3://{BUCKET}/{prefix}"])


def test_a_deleted_model_goes_when_no_version_is_alive(server, prefix, copy, tmp_path):
    copy.fetch()
    for key in ("config.pbtxt", "1/model.py", "2/model.py", "2/weights/large.bin"):
        server.delete(f"{prefix}/m/{key}")
    copy.alive = [2]
    copy.fetch()
    assert [set(listing.names) for listing in copy.mirrors.listings.values()] == [set()]
    assert copy.files() == WHOLE
    copy.alive = []
    server.put(f"{prefix}/new/config.pbtxt", "")  # a change, of which the search tells

    async def search() -> None:
        changed = asyncio.Event()
        searching = asyncio.create_task(copy.mirrors.follow(0, 0, changed.set))
        await changed.wait()
        searching.cancel()

    asyncio.run(search())
    assert copy.files() == {}
    assert cached(tmp_path) == []


def test_two_servers_share_what_was_downloaded(server, gate, prefix, copy, tmp_path):
    copy.fetch()
    gate.taken()
    other = Copy(gate.url(prefix), tmp_path / "cache")
    try:
        other.fetch()
        assert gate.taken() == []
        assert other.files() == WHOLE
        server.put(f"{prefix}/m/2/model.py", "new")
        other.fetch()
        assert other.files() == {**WHOLE, "m/2/model.py": b"new"}
        assert copy.files() == WHOLE
        assert gate.taken() == [f"{prefix}/m/2/model.py"]
        copy.fetch()
        assert gate.taken() == []
        assert copy.files() == other.files()
    finally:
        other.mirrors.close()


REFUSALS = {
    (403, "InvalidAccessKeyId"): r"access to s3://.* is denied \(InvalidAccessKeyId\): check AWS_ACCESS_KEY_ID",
    (301, "PermanentRedirect"): r"lies in another region: set AWS_DEFAULT_REGION",
    (503, "SlowDown"): r"s3://.* cannot be read: SlowDown",
}


@pytest.mark.parametrize(("refusal", "sentence"), REFUSALS.items(), ids=str)
def test_refusals_are_sentences(gate, tmp_path, refusal, sentence):
    gate.refusal = refusal
    with pytest.raises(ServerError, match=f"^repository path is not a valid directory: .*{sentence}") as refused:
        Copy(gate.url("models"), tmp_path / "cache")
    assert "\n" not in str(refused.value)


def test_a_missing_bucket_is_named(server: S3Server, gate, tmp_path):
    with pytest.raises(ServerError, match=r"does not exist: there is no bucket 'nowhere' \(NoSuchBucket\)$"):
        Copy(gate.url("models", "nowhere"), tmp_path / "cache")


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        ServerError, match=r"^the model repository s3://bucket/x is in cloud storage, .* `.*pip install"
    ):
        Mirrors(["s3://bucket/x"])
