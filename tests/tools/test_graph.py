"""``pybackend graph``: what it draws of ensembles, and what it says of those that cannot be drawn."""

import re
from pathlib import Path

import pytest

from tests.support.ensembles import FP32, step, write_ensemble, write_mix
from tests.support.repositories import tensors, write_model


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_mix(tmp_path)
    write_mix(tmp_path, "talker", extra="model_transaction_policy { decoupled: true }")
    steps = [
        step("mix", {"A": "x", "B": "y"}, {"S": "OUT"}),
        step("mix", {"A": "IN"}, {"S": "x"}),
        step("talker", {"A": "IN", "B": "MORE"}, {"D": "y"}, version=3),
    ]
    more = '{ name: "MORE" data_type: TYPE_FP32 dims: [ -1 ] optional: true }'
    write_ensemble(tmp_path, "diamond", steps, f"{tensors(IN=FP32)}, {more}", tensors(OUT=FP32, IN=FP32))
    steps = [step("diamond", {"IN": "IN"}, {"OUT": "z"}), step("no-where", {"A": "z"}, {"S": "OUT"})]
    write_ensemble(tmp_path, "outer", steps)
    return tmp_path


def test_text(pybackend, repository):
    done = pybackend("graph", str(repository))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "diamond\n"
        "  takes  IN, MORE (optional)\n"
        "  1      mix                           A <- IN              S -> x\n"
        "  1      talker (version 3, streams)   A <- IN, B <- MORE   D -> y\n"
        "  2      mix                           A <- x, B <- y       S -> OUT\n"
        "  gives  OUT, IN\n"
        "\n"
        "outer\n"
        "  takes  IN\n"
        "  1      diamond (ensemble, streams)        IN <- IN   OUT -> z\n"
        "  2      no-where (not in the repository)   A <- z     S -> OUT\n"
        "  gives  OUT\n"
    )


def test_mermaid(pybackend, repository):
    done = pybackend("graph", "--format=mermaid", "--model=diamond", str(repository))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.split("flowchart LR\n")[1].splitlines()
    assert done.stdout.startswith('---\ntitle: "diamond"\n---\nflowchart LR\n')
    nodes = dict(re.findall(r'^    (\w+)\(?\["(.*)"\]\)?$', done.stdout, re.MULTILINE))
    edges = re.findall(r'^    (\w+) -->\|"(.*)"\| (\w+)$', done.stdout, re.MULTILINE)
    assert len(nodes) + len(edges) == len(lines)
    assert {(nodes[source], label, nodes[target]) for source, label, target in edges} == {
        ("IN", "A", "mix"),
        ("IN", "A", "talker (version 3, streams)"),
        ("MORE (optional)", "B", "talker (version 3, streams)"),
        ("mix", "x", "mix"),
        ("talker (version 3, streams)", "y", "mix"),
        ("mix", "S", "OUT"),
        ("IN", "IN", "IN"),
    }


def test_names_that_mermaid_would_read_something_into(pybackend, tmp_path):
    write_mix(tmp_path, "m")
    name = 'a"]-->b|%%'
    steps = [
        step("m", {"A": "IN"}, {"S": name.replace('"', '\\"')}),
        step("m", {"A": name.replace('"', '\\"')}, {"S": "OUT"}),
    ]
    write_ensemble(tmp_path, "e", steps)
    drawing = pybackend("graph", str(tmp_path), "--format=mermaid").stdout
    assert '|"a#34;#93;--#62;b#124;#37;#37;"|' in drawing


def test_ensembles_that_cannot_be_drawn_are_named(pybackend, repository):
    write_ensemble(repository, "knot", [step("mix", {"A": "y", "B": "IN"}, {"S": "OUT", "D": "x"}), step("mix", {"A": "x"}, {"S": "y"})])  # fmt: skip
    write_ensemble(repository, "one", [step("two", {"IN": "IN"}, {"OUT": "OUT"})])
    write_ensemble(repository, "two", [step("one", {"IN": "IN"}, {"OUT": "OUT"})])
    write_model(repository, "broken", None, "ensemble_scheduling { step { modelname: 3 } }")
    done = pybackend("graph", str(repository))
    assert done.returncode == 1
    assert [line.split("\n")[0] for line in done.stdout.split("\n\n")] == ["diamond", "outer"]
    errors = done.stderr.splitlines()
    assert len(errors) == 4
    assert re.match(r"error: failed to read text proto from .*broken/config.pbtxt: line 1, .*modelname", errors[0])
    assert "output 'OUT' for ensemble 'knot' is not written: the steps wait for each other's tensors: " in errors[1]
    assert "circular dependency between ensembles: one -> two -> one (" in errors[2]
    assert "circular dependency between ensembles: two -> one -> two (" in errors[3]


def test_a_circle_among_the_parts_is_theirs(pybackend, tmp_path):
    """Looking for streams among them comes to an end."""
    write_ensemble(tmp_path, "a", [step("b", {"IN": "IN"}, {"OUT": "OUT"})])
    write_ensemble(tmp_path, "b", [step("c", {"IN": "IN"}, {"OUT": "OUT"})])
    write_ensemble(tmp_path, "c", [step("b", {"IN": "IN"}, {"OUT": "OUT"})])
    done = pybackend("graph", str(tmp_path))
    assert (done.returncode, done.stdout.splitlines()[0], len(done.stderr.splitlines())) == (1, "a", 2)


WRONG = {
    "no repository": ((), "the following arguments are required: REPOSITORY"),
    "no such repository": (("{0}/none",), "error: repository path is not a valid directory: '{0}/none'"),
    "no such format": (("{0}", "--format=svg"), 'Bad option: "--format". invalid choice: '),
    "no such flag": (("{0}", "--formt=text"), 'Bad option: "--formt". Did you mean --format?'),
    "no such ensemble": (("{0}", "--model=mix"), "error: unknown ensemble 'mix' in {0}: it has diamond, outer"),
}


@pytest.mark.parametrize(("arguments", "text"), WRONG.values(), ids=WRONG)
def test_wrong_arguments(pybackend, repository, arguments, text):
    done = pybackend("graph", *(each.format(repository) for each in arguments))
    assert (done.returncode, done.stdout) == (1, "")
    assert text.format(repository) in done.stderr
    assert "Traceback" not in done.stderr


def test_no_ensembles(pybackend, tmp_path):
    write_mix(tmp_path)
    done = pybackend("graph", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"There are no ensembles in {tmp_path}.\n")


def test_help(pybackend):
    assert "graph    draw the ensembles of a repository" in pybackend("--help").stdout
    done = pybackend("graph", "--help")
    assert done.returncode == 0
    assert "--format" in done.stdout
