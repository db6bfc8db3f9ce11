"""How answers are compared, and the user's metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybackend.errors import ServerError
from pybackend_tools.importing.verification import UnequalError
from pybackend_tools.optimizer.accuracy import (
    Difference,
    Metric,
    MetricError,
    Tolerance,
    difference_of,
)


def answer(**outputs: list[Any]) -> dict[str, Any]:
    def tensor(name: str, data: list[Any]) -> dict[str, Any]:
        datatype = {float: "FP32", int: "INT64", str: "BYTES"}[type(data[0])]
        return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}

    return {"outputs": [tensor(name, data) for name, data in outputs.items()]}


def test_numbers_differ_relative_to_those_above_1() -> None:
    found = difference_of([answer(y=[0.5, 202.0])], [{"y": [0.25, 200.0]}])
    assert found == Difference(0.25, pytest.approx(0.13), "y")


def test_labels_differ_or_not() -> None:
    found = difference_of(
        [answer(y=[0.5], label=[7, 9]), answer(y=[0.5], label=[7, 7])], 2 * [{"y": [0.5], "label": [7, 8]}]
    )
    assert found == Difference(1.0, pytest.approx(2 / 6), "label")
    assert difference_of([answer(word=["a", "b"])], [{"word": ["a", "b"]}]) == Difference(0.0, 0.0, "word")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_number_in_the_place_of_one_is_an_infinite_difference(value: float) -> None:
    assert difference_of([answer(y=[value])], [{"y": [1.0]}]).largest == float("inf")
    assert difference_of([answer(y=[value])], [{"y": [value]}]).largest == 0.0


def test_outputs_of_other_names_are_matched_by_their_sizes() -> None:
    original = [{"label": [1], "probabilities": [0.25, 0.75]}]
    assert difference_of([answer(output__0=[0.25, 0.5])], original) == Difference(0.25, 0.125, "probabilities")
    with pytest.raises(UnequalError, match=r"its output 'z' is not among the original's, label, probabilities"):
        difference_of([answer(z=[0.1, 0.2, 0.3])], original)
    with pytest.raises(UnequalError, match="output 'label' has 2 elements, and the original's 1"):
        difference_of([answer(label=[1, 2])], original)


@pytest.mark.parametrize("values", [["x"], [2**2000], ["\x00"]])
def test_an_original_without_numbers_cannot_be_compared(values: list[Any]) -> None:
    with pytest.raises(UnequalError, match="output 'y' is served as numbers, and the framework's values are not"):
        difference_of([answer(y=[0.5])], [{"y": values}])


def test_differences_beyond_a_tolerance_are_named() -> None:
    difference = Difference(0.2, 0.05, "y")
    assert difference.beyond(Tolerance(0.2, 0.05)) == ""
    assert difference.beyond(Tolerance(0.1, 1)) == "output 'y' differs by up to 0.2, more than 0.1"
    assert difference.beyond(Tolerance(1, 0.01)) == "its outputs differ by 0.05 on average, more than 0.01"


def test_a_metric_is_a_function_of_the_users_file(tmp_path: Path) -> None:
    file = tmp_path / "score.py"
    file.write_text(
        "def metric(inputs, outputs):\n    return sum(float((i['x'] == o['y']).mean()) for i, o in zip(inputs, outputs))\n"
        "def broken(inputs, outputs):\n    return outputs[0]['z']\n"
        "def nothing(inputs, outputs):\n    return float('nan')\n"
        "def leaving(inputs, outputs):\n    raise SystemExit(3)\n"
    )
    requests = [{"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2]}]}]
    assert Metric(str(file))(requests, [answer(y=[1, 3])]) == 0.5
    for name, said in (
        ("broken", "fails: KeyError: 'z'"),
        ("nothing", "returns no number"),
        ("leaving", "fails: SystemExit: 3"),
    ):
        with pytest.raises(MetricError, match=f"^--metric: {file}:{name} {said}$"):
            Metric(f"{file}:{name}")(requests, [answer(y=[1, 3])])


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.py", "does not exist"),
        ("score.py:other", "has no function other"),
        ("wrong.py", "cannot be run: NameError"),
    ],
)
def test_a_file_without_a_metric_is_refused(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "score.py").write_text("def metric(inputs, outputs): return 1\n")
    (tmp_path / "wrong.py").write_text("nowhere\n")
    with pytest.raises(ServerError, match=said):
        Metric(str(tmp_path / place))
