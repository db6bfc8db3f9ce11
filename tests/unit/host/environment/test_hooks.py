"""What is made of what a shell tells about the activation hooks of an environment."""

import subprocess
from pathlib import Path

import pytest

from pybackend.environment.hooks import (
    NOTHING,
    VARIABLES_HOOK,
    HookEffect,
    ShellRun,
    effect_of,
    hooks_of,
    shell_command,
)

PREFIX = Path("/env")
HOOKS = [PREFIX / "a.sh", PREFIX / "b.sh"]
SCRATCH = "/run/scratch/7"


def block(status=0, **variables):
    told = "".join(f"{name}={value}\0" for name, value in variables.items())
    return f"={status}\0{told}=\0".encode()


def effect(*blocks, said=b"", ending="", left=0, hooks=HOOKS):
    return effect_of(ShellRun(b"".join(blocks), said, ending, left), hooks, PREFIX, SCRATCH)


def with_hooks(prefix, **texts):
    directory = prefix / "etc" / "conda" / "activate.d"
    directory.mkdir(parents=True)
    for name, text in texts.items():
        (directory / f"{name}.sh").write_text(text)
    return directory


class TestFinding:
    def test_shell_scripts_are_hooks_in_the_order_of_their_names(self, tmp_path):
        directory = with_hooks(tmp_path, b="", a="", B="")
        (directory / "c.fish").touch()
        assert [hook.name for hook in hooks_of(tmp_path)] == ["B.sh", "a.sh", "b.sh"]

    @pytest.mark.parametrize("present", ["nothing", "file", "empty"])
    def test_an_environment_may_have_none(self, present, tmp_path):
        if present == "file":
            (tmp_path / "etc").touch()
        elif present == "empty":
            with_hooks(tmp_path)
        assert hooks_of(tmp_path) == []

    def test_what_the_manifest_says_is_not_asked_again(self, tmp_path):
        directory = with_hooks(tmp_path)
        (directory / VARIABLES_HOOK).touch()
        assert hooks_of(tmp_path, has_manifest=True) == []
        assert len(hooks_of(tmp_path)) == 1
        (directory / "gdal.sh").touch()
        assert [hook.name for hook in hooks_of(tmp_path, has_manifest=True)] == ["gdal.sh", VARIABLES_HOOK]


class TestShell:
    def told(self, tmp_path, shell=None, **texts):
        directory = with_hooks(tmp_path, **texts)
        hooks = sorted(directory.iterdir())
        command = shell_command(tmp_path, hooks)
        done = subprocess.run(
            [shell or command[0], *command[1:]],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HAD": "1"},
            capture_output=True,
            check=False,
        )
        run = ShellRun(done.stdout, done.stderr, f"ended with {done.returncode}" if done.returncode else "", 0)
        return effect_of(run, hooks, tmp_path, SCRATCH)

    @pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
    def test_hooks_see_what_those_before_them_have_set(self, shell, tmp_path):
        if not Path(shell).exists():
            pytest.skip(f"this machine has no {shell}")
        found = self.told(
            tmp_path,
            shell,
            a="export FIRST='two\nlines' PLAIN=\"it's\"\nKEPT_TO_ITSELF=1\necho noise\n",
            b='export SECOND="$FIRST" GONE=1\nunset HAD\n',
            c="unset GONE\n[ -d /nowhere ] && export THIRD=1\n",
        )
        assert dict(found.variables) == {"FIRST": "two\nlines", "PLAIN": "it's", "SECOND": "two\nlines"}
        assert found.unset == ("HAD",)
        assert found.complaints == ()

    @pytest.mark.parametrize("name", ["it's", "a b", "$(exit 7)", "-n", "new\nline"], ids=list("abcde"))
    def test_names_mean_nothing_to_the_shell(self, name, tmp_path):
        assert self.told(tmp_path, **{name: "export A=1\n"}) == HookEffect({"A": "1"})

    def test_one_that_leaves_takes_its_successors_along(self, tmp_path):
        found = self.told(tmp_path, a="export A=1\n", b="export B=1\nexit 3\n", c="export C=1\n")
        assert dict(found.variables) == {"A": "1"}
        directory = tmp_path / "etc" / "conda" / "activate.d"
        assert found.complaints == (f"{directory}/b.sh ended with 3, before the hooks after it ran",)

    def test_functions_that_bash_exports_are_no_variables(self, tmp_path):
        assert self.told(tmp_path, "/bin/bash", a="f() { :; }\nexport -f f\nexport A=1\n") == HookEffect({"A": "1"})

    def test_too_many_are_refused(self):
        with pytest.raises(ValueError, match="there are 2000 of them, which is too many"):
            shell_command(PREFIX, [PREFIX / f"{number}.sh" for number in range(2000)])


class TestEffect:
    def test_what_changes_which_code_runs_is_not_taken(self):
        before = {"PATH": "/env/bin:/bin", "CONDA_PREFIX": "/env", "PWD": "/", "SHLVL": "0"}
        names = ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYBACKEND_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"]
        names += ["PWD", "OLDPWD", "SHLVL", "_", "BASH_FUNC_f%%", "1"]
        after = {**before, **dict.fromkeys(names, "x"), "JAVA_HOME": "/env/lib/jvm"}
        del after["PATH"]
        assert effect(block(**before), block(**after), hooks=HOOKS[:1]) == HookEffect({"JAVA_HOME": "/env/lib/jvm"})

    def test_only_directories_of_the_environment_come_into_the_path(self):
        before, after = (
            block(PATH="/env/bin:/bin"),
            block(PATH="/env/x:/evil:/env/../evil::x:/env/bin:/env/x:/bin:/env/y"),
        )
        found = effect(before, after, hooks=HOOKS[:1])
        assert found == HookEffect(path=("/env/x", "/env/y"))
        assert found.applied({"PATH": "/env/bin:/bin"}) == {"PATH": "/env/x:/env/y:/env/bin:/bin"}
        assert found.applied({}) == {"PATH": "/env/x:/env/y"}

    def test_what_lay_in_its_private_directory_is_no_more(self):
        found = effect(block(), block(A=f"{SCRATCH}/a", B="1"), hooks=HOOKS[:1])
        assert found == HookEffect({"B": "1"})

    def test_a_failure_that_says_something_is_told(self):
        found = effect(
            block(), block(2), block(1, A="1"), said=b"x: line 3: \x1b[31mwrong\n\0\0", ending="", hooks=HOOKS
        )
        assert dict(found.variables) == {"A": "1"}
        assert found.complaints == ("/env/a.sh returned 2: x: line 3: ?[31mwrong",)

    def test_what_it_leaves_behind_is_told(self):
        assert effect(block(), block(), left=2, hooks=HOOKS[:1]).complaints == (
            "/env/a.sh left processes behind (2); they were killed",
        )

    @pytest.mark.parametrize(
        "output",
        [b"", b"\0\0\0", b"=0\0A=1\0", b"garbage", b"\xff\xfe=\xff\0=\0", b"=\0=\0=\0"],
        ids=["nothing", "zeros", "half", "garbage", "bytes", "marks"],
    )
    def test_garbage_is_no_answer(self, output):
        found = effect(output, said=b"sh: broken\n", ending="ended the shell with status 1")
        assert found.names == []
        assert len(found.complaints) == 1

    def test_bytes_that_are_no_text_come_through(self):
        found = effect(block(), b"=0\0A=\xff\0=\0", hooks=HOOKS[:1])
        assert found.variables["A"].encode("utf-8", "surrogateescape") == b"\xff"

    def test_more_than_a_process_can_be_started_with_is_not_taken(self):
        found = effect(block(), block(A="x" * 70_000, B="x" * 70_000), hooks=HOOKS[:1])
        assert found.names == []
        assert found.complaints == ("/env/a.sh set more than 128 KiB of variables",)


def test_it_changes_variables():
    known = HookEffect({"A": "1"}, ("B",), ("/env/x",), ("a.sh did something",))
    assert known.names == ["A", "B", "PATH"]
    assert known.applied({"B": "2", "C": "3", "PATH": "/bin"}) == {"A": "1", "C": "3", "PATH": "/env/x:/bin"}
    assert NOTHING.applied({"B": "2"}) == {"B": "2"}
