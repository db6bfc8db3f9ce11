"""Instances that are forked from a process that has imported what they need: a model cannot tell, but by what they
share."""

import os
from pathlib import Path

import pytest

from tests.support.callers import caller, sender, write_caller
from tests.support.gates import wait_until
from tests.support.server import name_of, serving


def parameter(name, value):
    return f'parameters {{ key: "{name}" value: {{ string_value: "{value}" }} }}\n'


SPAWNED = parameter("ZYGOTE", "no")

FACTS = """
import gc, locale, resource, signal, socket, stat, sys, threading, warnings
descriptors = []
for number in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        kind = os.readlink("/proc/self/fd/%d" % number).partition(":")[0]
    except FileNotFoundError:  # the listing's own
        continue
    if "memfd" not in kind and not kind.startswith("/proc"):
        descriptors.append([kind, os.get_inheritable(number)])
np.ones((300, 300)) @ np.ones((300, 300))
try:
    threads = [thread.name for thread in threading.enumerate()]
    mask = os.umask(0)
finally:
    os.umask(mask)
return {
    "parent": os.getppid(),
    "leads a session": os.getsid(0) == os.getpid(),
    "leads a group": os.getpgrp() == os.getpid(),
    "in the main thread": threading.current_thread() is threading.main_thread(),
    "main thread": threading.main_thread().ident == threading.get_ident(),
    "first thread": threading.get_native_id() == os.getpid(),
    "threads": sorted(threads),
    "native threads": len(os.listdir("/proc/self/task")),
    "arguments": sys.argv,
    "flags": list(sys.flags),
    "executable": sys.executable,
    "path": sys.path[1:],
    "variables": dict(os.environ),
    "directory": os.getcwd(),
    "mask": mask,
    "descriptors": sorted(descriptors),
    "input": os.readlink("/proc/self/fd/0"),
    "encoding": [sys.stdout.encoding, sys.stderr.encoding, sys.getfilesystemencoding(), locale.getlocale()[0]],
    "buffering": [sys.stdout.line_buffering, sys.stderr.line_buffering],
    "collects": gc.isenabled(),
    "signals": {signal.Signals(number).name: getattr(signal.getsignal(number), "__name__", str(signal.getsignal(number))) for number in (1, 2, 13, 15, 17)},
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "cores": sorted(os.sched_getaffinity(0)),
    "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
    "warnings": [str(each) for each in warnings.filters],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
}
"""
"""What a model can find out about its process, less what has to differ."""

NOT_EQUAL = {"path"}
"""Each model has its own directory there."""


@pytest.mark.thorough
def test_a_model_cannot_tell(tmp_path, whole_starts):
    write_caller(tmp_path, "forked")
    write_caller(tmp_path, "spawned", extra="instance_group { kind: KIND_CPU }\n" + SPAWNED)
    with serving(tmp_path) as server:
        assert len(server.zygote_pids()) == 1
        forked, spawned = (caller(server, name)(FACTS) for name in ("forked", "spawned"))
        ways = [caller(server, name)("return sys.orig_argv[4]") for name in ("forked", "spawned")]
    assert ways[0] == "zygote"
    assert ways[1] != "zygote"
    assert forked["parent"] == server.process.pid
    for name in NOT_EQUAL:
        del forked[name], spawned[name]
    for facts in (forked, spawned):  # each model has its own home
        del facts["variables"]["HOME"], facts["variables"]["XDG_CACHE_HOME"]
    assert forked == spawned


def test_forks_draw_numbers_of_their_own(tmp_path):
    """What is seeded when it is imported was perhaps imported before the fork."""
    code = """
    import random, secrets, tempfile, uuid
    return [np.random.random(), np.random.default_rng().random(), random.random(), secrets.token_hex(),
            str(uuid.uuid4()), next(tempfile._get_candidate_names())]
    """
    names = [f"m{number}" for number in range(4)]
    preload = parameter("PRELOAD", "numpy.random, random, uuid, tempfile")
    for name in names:
        write_caller(tmp_path, name, extra="instance_group { kind: KIND_CPU }\n" + preload)
    with serving(tmp_path) as server:
        drawn = [caller(server, name)(code) for name in names]
        shared = caller(server, "m0")("return sys.orig_argv[-4:]")
    assert shared == ["numpy.random", "random", "uuid", "tempfile"]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(names), column


def test_modules_are_imported_before_the_fork(tmp_path):
    code = "import json, sys\nbefore = {'sqlite3', 'logging'} & set(sys.modules)\n"
    for name, preload in (("with", parameter("PRELOAD", "sqlite3,logging")), ("without", "")):
        directory = write_caller(tmp_path, name, extra="instance_group { kind: KIND_CPU }\n" + preload)
        file = directory / "1/model.py"
        file.write_text(code + file.read_text())
    with serving(tmp_path) as server:
        assert caller(server, "with")("return sorted(before)") == ["logging", "sqlite3"]
        assert caller(server, "without")("return sorted(before)") == []
        # What writes records of Python's logging to the server's log comes after its import.
        assert caller(server, "with")("import logging; logging.warning('from a model'); return 1") == 1
        server.wait_for(r'W\d.*with_0_0/.*\] "from a model"')
        assert len(server.zygote_pids()) == 2  # one for each list


@pytest.mark.parametrize(
    ("preload", "reason"),
    [("no_such_module", "No module named 'no_such_module'"), ("this.is.none", "'this' is not a package")],
)
def test_a_module_that_cannot_be_imported_costs_the_fork_only(tmp_path, preload, reason):
    write_caller(tmp_path, extra="instance_group { kind: KIND_CPU count: 3 }\n" + parameter("PRELOAD", preload))
    with serving(tmp_path) as server:
        assert caller(server)("return sys.orig_argv[4]") != "zygote"
        assert len(server.stub_pids()) == 3
        assert server.zygote_pids() == []
        assert server.output.count("are started one by one for a while, not forked") == 1
        assert reason in server.output


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ZYGOTE", "perhaps", r"parameters ZYGOTE must be \"yes\" or \"no\", it is 'perhaps'"),
        ("PRELOAD", "a b", "parameters PRELOAD must be comma-separated names of modules, it is 'a b'"),
        ("PRELOAD", "os;evil", "parameters PRELOAD must be comma-separated names of modules"),
    ],
)
def test_what_is_no_value_fails_the_load(tmp_path, key, value, reason):
    write_caller(tmp_path, extra="instance_group { kind: KIND_CPU }\n" + parameter(key, value))
    with serving(tmp_path, ready=False) as server:
        assert server.wait() == 1
    assert reason in server.output


def test_a_server_without_zygotes(tmp_path):
    write_caller(tmp_path)
    with serving(tmp_path, flags=("--no-zygote",)) as server:
        assert caller(server)("return sys.orig_argv[4]") != "zygote"
        assert server.zygote_pids() == []


def test_processes_bear_the_names_of_their_instances(tmp_path):
    write_caller(tmp_path, "short", extra="instance_group { kind: KIND_CPU count: 2 }\n")
    write_caller(tmp_path, "a_rather_long_name", extra="instance_group { kind: KIND_CPU }\n" + SPAWNED)
    with serving(tmp_path) as server:
        names = sorted(name_of(pid) for pid in server.stub_pids())
        assert names == sorted(["short_0_0", "short_0_1", "her_long_name_0_0"[-15:]])
        lines = sorted(Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode() for pid in server.stub_pids())
        assert lines == ["a_rather_long_name_0_0", "short_0_0", "short_0_1"]


def test_an_instance_leaves_as_others_do(tmp_path):
    """Exit handlers run, what was printed without a line feed is said, and its status is told."""
    write_caller(tmp_path)
    with serving(tmp_path) as server:
        run = caller(server)
        run("import atexit\natexit.register(print, 'the end', end='')\nreturn 1")
        assert server.stop() == 0
    assert "the end" in server.output
    with serving(tmp_path) as server:
        reply = sender(server)("os._exit(7)")
        assert reply.status == 500
        assert "exited with status 7" in reply.document["error"]
        server.wait_until("/v2/models/caller/ready", 200)
        reply = sender(server)("os.kill(os.getpid(), 9)")
        assert "was killed by signal 9 (SIGKILL)" in reply.document["error"]


def test_pinned_instances_have_as_many_threads_as_cores(tmp_path):
    """As those have that are pinned before they import numpy."""
    core = min(os.sched_getaffinity(0))
    write_caller(tmp_path)
    code = """
    np.ones((500, 500)) @ np.ones((500, 500))
    return [sorted(os.sched_getaffinity(0)), len(os.listdir("/proc/self/task"))]
    """
    with serving(tmp_path, flags=(f"--host-policy=cpu,cpu-cores={core}",)) as server:
        assert server.zygote_pids()
        assert caller(server)(code) == [[core], 1]


def test_threads_for_matrices_begin_with_the_first_work_for_them(tmp_path):
    """Each looks for work in a loop when it begins: where models are many, their starts would take the machine."""
    write_caller(tmp_path)
    code = """
    idle = len(os.listdir("/proc/self/task"))
    np.ones((500, 500)) @ np.ones((500, 500))
    return [idle, len(os.listdir("/proc/self/task")) == len(os.sched_getaffinity(0))]
    """
    with serving(tmp_path) as server:
        assert server.zygote_pids()
        assert caller(server)(code) == [1, True]


def test_a_fork_shares_the_modules_that_it_does_not_use(tmp_path):
    """CPython counts references inside of objects: whoever looks at a module copies the memory in which it lies."""
    write_caller(tmp_path)
    code = """
    import sys
    def private_kib():
        with open("/proc/self/smaps_rollup") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))
    private_kib()  # has memory of its own from here on
    before = private_kib()
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [len(files), private_kib() - before]
    """
    with serving(tmp_path) as server:
        assert server.zygote_pids()
        modules, copied_kib = caller(server)(code)
    assert copied_kib > modules, "the stub looked at all modules before the model did"


@pytest.mark.thorough
def test_the_variable_that_says_how_many_threads_counts(tmp_path):
    write_caller(tmp_path, "forked")
    write_caller(tmp_path, "spawned", extra="instance_group { kind: KIND_CPU }\n" + SPAWNED)
    code = """
    np.ones((500, 500)) @ np.ones((500, 500))
    return [os.environ["OPENBLAS_NUM_THREADS"], len(os.listdir("/proc/self/task"))]
    """
    for count in ("1", "2"):
        with serving(tmp_path, env={**os.environ, "OPENBLAS_NUM_THREADS": count}) as server:
            forked, spawned = (caller(server, name)(code) for name in ("forked", "spawned"))
        assert forked == spawned
        assert forked[0] == count


def test_a_zygote_that_nobody_needs_is_ended(tmp_path):
    write_caller(tmp_path, extra="instance_group { kind: KIND_CPU }\n" + SPAWNED)
    with serving(tmp_path) as server:
        wait_until(lambda: server.zygote_pids() == [], "the zygote that was started ahead lives on")
        assert len(server.stub_pids()) == 1
