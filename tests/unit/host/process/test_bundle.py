"""The directories that stubs are started from: other versions' are removed, unless they are or may be in use, and other
users' are not used."""

import os

import pytest

from pybackend.environment.file_lock import FileLock
from pybackend.errors import ServerError
from pybackend.process.bundle import UNUSED_S, remove_unused_bundles, stage_bundle

OTHER = 4321


def test_unused_directories_of_other_versions_are_removed(tmp_path):
    bundle = stage_bundle(tmp_path)
    own = {bundle.name, f"{bundle.name}.lock"}
    assert {path.name for path in tmp_path.iterdir()} == own

    def make(name, age_s, *, locked=True):
        (tmp_path / name / "pybackend_stub").mkdir(parents=True)
        (tmp_path / name / "__main__.py").touch()
        used = tmp_path / f"{name}.lock" if locked else tmp_path / name
        used.touch()
        then = used.stat().st_mtime - age_s
        os.utime(used, (then, then))

    make("stub-old", UNUSED_S + 60)
    make("stub-used", UNUSED_S + 60)
    make("stub-young", UNUSED_S - 3600)
    make("stub-unlocked", UNUSED_S + 60, locked=False)
    make(".staging-old", UNUSED_S + 60, locked=False)
    make(".staging-young", 60, locked=False)
    make("other", UNUSED_S + 60)
    user = FileLock(tmp_path / "stub-used.lock")
    assert user.take_shared()
    os.utime(tmp_path / f"{bundle.name}.lock", (0, 0))
    remove_unused_bundles(bundle)
    user.release()
    kept = {"stub-used", "stub-used.lock", "stub-young", "stub-young.lock", "stub-unlocked", ".staging-young"}
    assert {path.name for path in tmp_path.iterdir()} == own | kept | {"other", "other.lock"}
    assert (bundle / "__main__.py").exists()
    remove_unused_bundles(bundle)  # nobody uses it any more
    assert {path.name for path in tmp_path.iterdir()} == own | kept - {"stub-used", "stub-used.lock"} | {
        "other",
        "other.lock",
    }


@pytest.mark.parametrize("kind", ["anybody's", "another user's", "another user's link"])
def test_a_directory_in_which_another_user_can_replace_the_code_is_not_used(kind, tmp_path):
    tmp_path.chmod(0o1777)
    place = tmp_path / "pybackend-1000"
    if kind == "another user's link":
        (tmp_path / "own").mkdir()
        place.symlink_to("own")
    else:
        place.mkdir()
    if kind == "anybody's":
        place.chmod(0o777)
    elif os.getuid() == 0:
        os.chown(place, OTHER, OTHER, follow_symlinks=False)
    else:
        pytest.skip("needs root: files of another user")
    with pytest.raises(ServerError, match="no other user can change"):
        stage_bundle(place)
    assert not list(place.iterdir())
    tmp_path.chmod(0o700)


def test_a_volume_that_is_open_to_all_users_is_used(tmp_path):
    place = tmp_path / "pybackend"
    place.mkdir()
    place.chmod(0o777)
    assert stage_bundle(place).parent == place
