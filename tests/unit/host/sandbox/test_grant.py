"""What a model may give to those that it loads."""

import os

import pytest

from pybackend.errors import InferenceError, ModelConfigError
from pybackend.sandbox.grant import Grant
from pybackend.sandbox.options import SandboxOptions, resource_limits

LIMITS = resource_limits("standard", SandboxOptions(), own_user=False)


def grant(level="standard", *, network=True, **members):
    return Grant("caller", level, network, True, True, members.pop("limits", LIMITS), **members)


def bounded(caller, options=None, *, usual="standard", own=None):
    return caller.bounded("new", options or SandboxOptions(), usual, own, "test")


@pytest.mark.parametrize(
    ("level", "usual", "asked", "expected"),
    [
        ("standard", "off", None, "standard"),
        ("standard", "standard", "strict", "strict"),
        ("standard", "strict", None, "strict"),
        ("standard", "strict", "standard", "standard"),
        ("strict", "standard", None, "strict"),
    ],
)
def test_the_level_is_never_lower(level, usual, asked, expected):
    assert bounded(grant(level), SandboxOptions(level=asked), usual=usual).level == expected
    with pytest.raises(ModelConfigError, match="runs at '"):
        bounded(grant(level), SandboxOptions(level="off"), usual=usual)


def test_silence_is_as_narrow_as_the_one_who_loads_it():
    caller = grant(network=False, limits={**LIMITS, "DATA": 200 << 20, "NPROC": 7}, control=("a",))
    options = bounded(caller)
    assert (options.network, options.memory_mb, options.processes, options.model_control) == (False, 200, 7, ("a",))
    assert bounded(caller, SandboxOptions(level="strict")).model_control is None


@pytest.mark.parametrize(
    "options",
    [
        SandboxOptions(network=True),
        SandboxOptions(memory_mb=201),
        SandboxOptions(processes=8),
        SandboxOptions(model_control=("a", "b")),
        SandboxOptions(uid=1),
        SandboxOptions(uid=-1),
    ],
)
def test_who_asks_for_more_is_refused(options):
    caller = grant(network=False, limits={**LIMITS, "DATA": 200 << 20, "NPROC": 7}, control=("a",), uid=2)
    with pytest.raises(ModelConfigError, match="would give it more than model 'caller'"):
        bounded(caller, options)
    assert bounded(caller, SandboxOptions(uid=2)).uid == 2


def test_paths_that_could_be_made_to_lead_elsewhere_are_refused(tmp_path):
    for name in ("read/inner", "write/inner", "hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "read" / "link").symlink_to(tmp_path / "hidden")
    (tmp_path / "good").symlink_to(tmp_path / "read" / "inner")
    caller = grant(rules=[(str(tmp_path / "read"), "rx"), (str(tmp_path / "write"), "rxw")])

    def may_read(name):
        try:
            return bounded(caller, SandboxOptions(read=(str(tmp_path / name),))).read
        except ModelConfigError:
            return None

    assert may_read("read/inner") == (str(tmp_path / "read" / "inner"),)
    assert may_read("good") == (os.path.realpath(tmp_path / "good"),), "what counts is where it leads now"
    assert may_read("read/link") is None
    assert may_read("hidden") is None
    assert may_read("write/inner") is None, "it could be replaced by a link"
    assert may_read("read/not there") is None
    assert bounded(caller, SandboxOptions(write=(str(tmp_path / "write"),))).write == (str(tmp_path / "write"),)
    for name in ("read", "write/inner", "hidden"):
        with pytest.raises(ModelConfigError, match="SANDBOX_WRITE"):
            bounded(caller, SandboxOptions(write=(str(tmp_path / name),)))
    assert caller.may_change(tmp_path / "write" / "config.pbtxt")
    assert not caller.may_change(tmp_path / "read" / "config.pbtxt")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files are closed to models' users")
def test_what_permissions_deny_it_denies(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    rules = [(str(tmp_path), "rxw")]
    assert not grant(rules=[(str(tmp_path), "rx")], user=(12345, 12345)).reaches(str(tmp_path / "secret"))
    assert grant(rules=[(str(tmp_path), "rx")]).reaches(str(tmp_path / "secret"))
    assert not grant(rules=rules, user=(12345, 12345)).may_change(tmp_path / "secret")
    assert grant(rules=rules).may_change(tmp_path / "secret")
    os.chown(tmp_path, 12345, 12345)
    assert grant(rules=rules, user=(12345, 12345)).may_change(tmp_path / "secret")


def test_which_models_it_controls():
    grant().check_control("any")
    grant(control=("a",)).check_control("a")
    with pytest.raises(InferenceError, match="does not name it"):
        grant(control=("a",)).check_control("b")


def test_for_which_models_it_brings_something(tmp_path):
    own, same, elsewhere = (tmp_path / path for path in ("models/own", "models/same", "others/same"))
    for path in (own, same, elsewhere):
        path.mkdir(parents=True)
    for level in ("off", "standard"):
        grant(level).check_override("a", own, same)
        grant(level, overrides=True).check_override("a", own, None)
    for other in (elsewhere, tmp_path / "models/gone", None):
        with pytest.raises(InferenceError, match="--allow-model-overrides"):
            grant().check_override("a", own, other)
    with pytest.raises(InferenceError, match="--allow-model-overrides"):
        grant().check_override("a", None, same)
    with pytest.raises(InferenceError, match="at level 'strict'"):
        grant("strict", overrides=True).check_override("a", own, same)
    if os.geteuid() == 0:
        os.chown(same, 12345, 12345)
        with pytest.raises(InferenceError, match="--allow-model-overrides"):
            grant().check_override("a", own, same)
