"""Outputs asked for as classes, over HTTP and through tritonclient."""

import numpy as np
import pytest

from tests.support.callers import caller, write_caller, write_targets
from tests.support.ensembles import step, write_ensemble
from tests.support.inference import infer
from tests.support.repositories import IDENTITY, identity_config, tensors, write_model
from tests.support.served import served
from tests.support.server import serving

httpclient = pytest.importorskip("tritonclient.http")

SCORES = np.float32([[0.1, 5, -2, 3], [9, 8, 7, 6]])


def config(datatype, dims="[ 4 ]", extra="max_batch_size: 4", labels=""):
    return f"""
        backend: "python"
        input {{ name: "IN" data_type: {datatype} dims: {dims} }}
        output {{ name: "OUT" data_type: {datatype} dims: {dims} {labels} }}
        {extra}
    """


@served()
def server(repository):
    directory = write_model(
        repository, "named", IDENTITY, config("TYPE_FP32", labels='label_filename: "names/labels.txt"')
    )
    (directory / "names").mkdir()
    (directory / "names" / "labels.txt").write_bytes("zero\r\nun\n\n三".encode())
    named = [step("named", {"IN": "IN"}, {"OUT": "OUT"})]
    scores = tensors(IN=("TYPE_FP32", [4])), tensors(OUT=("TYPE_FP32", [4]))
    write_ensemble(repository, "within", named, *scores, extra="max_batch_size: 4")
    write_ensemble(repository, "around", [step("within", {"IN": "IN"}, {"OUT": "OUT"})], *scores)
    own = write_ensemble(repository, "own", named, scores[0], scores[1].replace("}", ' label_filename: "own.txt" }'))
    (own / "own.txt").write_text("eins\nzwei\ndrei\nvier\n")
    write_model(repository, "whole", IDENTITY, config("TYPE_INT64", "[ 2, 3 ]", ""))
    for name in ("UINT8", "UINT64", "INT8", "FP64", "FP16", "BOOL", "STRING"):
        write_model(repository, name.lower(), IDENTITY, config(f"TYPE_{name}", "[ -1 ]", ""))
    write_model(repository, "long", IDENTITY, identity_config("TYPE_UINT8", "[ -1 ]", "max_batch_size: 2"))


def ask(server, model, array, count, **parameters):
    outputs = [{"name": "OUT", "parameters": {"classification": count, **parameters}}]
    return infer(server, model, {"IN": array}, outputs=outputs)


@pytest.mark.spec("srv-H22")
@pytest.mark.spec("srv-R23")
def test_the_largest_of_each_item_with_its_label(server):
    got = ask(server, "named", SCORES, 3)["OUT"]
    assert got.tolist() == [
        [b"5.000000:1:un", "3.000000:3:三".encode(), b"0.100000:0:zero"],
        [b"9.000000:0:zero", b"8.000000:1:un", b"7.000000:2"],  # an empty line is no label
    ]


@pytest.mark.spec("srv-R17", "srv-R23")
def test_an_ensemble_has_the_labels_of_the_step_unless_it_has_its_own(server):
    assert ask(server, "within", SCORES, 1)["OUT"].tolist() == [[b"5.000000:1:un"], [b"9.000000:0:zero"]]
    assert ask(server, "around", SCORES[0], 1)["OUT"].tolist() == [b"5.000000:1:un"]
    assert ask(server, "own", SCORES[0], 1)["OUT"].tolist() == [b"5.000000:1:zwei"]


def test_labels_of_a_part_that_is_replaced(tmp_path):
    """A client that sends the same header again gets the new ones."""
    write_targets(tmp_path, "double")
    write_caller(tmp_path)
    labelled = config("TYPE_FP32", extra="", labels='label_filename: "labels.txt"')
    directory = write_model(tmp_path, "part", IDENTITY, labelled)
    scores = tensors(IN=("TYPE_FP32", [4])), tensors(OUT=("TYPE_FP32", [4]))
    write_ensemble(tmp_path, "e", [step("part", {"IN": "IN"}, {"OUT": "OUT"})], *scores)
    with_labels = directory / "labels.txt"
    with_labels.write_text("a\nb\n")
    with serving(tmp_path, flags=("--model-control-mode=explicit", "--load-model=*")) as server:
        assert ask(server, "e", SCORES[0], 1)["OUT"].tolist() == [b"5.000000:1:b"]
        with_labels.write_text("a\nB\n")
        caller(server)("pb_utils.load_model('part')")
        assert ask(server, "e", SCORES[0], 1)["OUT"].tolist() == [b"5.000000:1:B"]


@pytest.mark.spec("srv-H22")
def test_as_json(server):
    body = {
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [2, 4], "data": SCORES.tolist()}],
        "outputs": [{"name": "OUT", "parameters": {"classification": 1}}],
    }
    (output,) = server.infer("named", body).json["outputs"]
    assert output == {
        "name": "OUT",
        "datatype": "BYTES",
        "shape": [2, 1],
        "data": ["5.000000:1:un", "9.000000:0:zero"],
    }


@pytest.mark.spec("srv-H22")
def test_tritonclient(server):
    client = httpclient.InferenceServerClient(server.url)
    wanted = [httpclient.InferRequestedOutput("OUT", class_count=2)]
    given = httpclient.InferInput("IN", [2, 4], "FP32")
    given.set_data_from_numpy(SCORES)
    got = client.infer("named", [given], outputs=wanted).as_numpy("OUT")
    assert got.tolist() == [[b"5.000000:1:un", "3.000000:3:三".encode()], [b"9.000000:0:zero", b"8.000000:1:un"]]
    client.close()


def test_without_a_batch_all_elements_are_one_item(server):
    got = ask(server, "whole", np.array([[1, -5, 2**53], [3, 4, 0]], np.int64), 100)["OUT"]
    assert got.tolist() == [
        b"9007199254740992.000000:2",
        b"4.000000:4",
        b"3.000000:3",
        b"1.000000:0",
        b"0.000000:5",
        b"-5.000000:1",
    ]


def test_zero_classes_are_the_tensor(server):
    assert ask(server, "named", SCORES, 0)["OUT"].tolist() == SCORES.tolist()


@pytest.mark.parametrize("name", ["uint8", "uint64", "int8", "fp64"])
def test_datatypes(server, name):
    dtype = {"uint8": np.uint8, "uint64": np.uint64, "int8": np.int8, "fp64": np.float64}[name]
    got = ask(server, name, np.array([3, 1, 2], dtype), 2)["OUT"]
    assert got.tolist() == [b"3.000000:0", b"2.000000:2"]


def test_what_is_no_number_comes_last(server):
    got = ask(server, "fp64", np.array([np.nan, 1, np.inf, -np.inf]), 4)["OUT"]
    assert got.tolist()[:2] == [b"inf:2", b"1.000000:1"]
    assert set(got.tolist()[2:]) == {b"-inf:3", b"nan:0"}


@pytest.mark.spec("srv-H22")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fp16", np.float16([1])),
        ("bool", np.array([True])),
        ("string", np.array([b"x"], object)),
    ],
)
def test_types_without_classes(server, name, value):
    answer = ask(server, name, value, 1)
    kind = "BYTES" if name == "string" else name.upper()
    assert answer.status == 400
    assert answer.error.startswith(f"class result not available for output due to unsupported type '{kind}'")


@pytest.mark.spec("srv-H22")
def test_too_many_elements(server):
    largest = np.zeros((1, 1_000_000), np.uint8)
    largest[0, 77] = 1
    assert ask(server, "long", largest, 1)["OUT"].tolist() == [[b"1.000000:77"]]
    answer = ask(server, "long", np.zeros((1, 1_000_001), np.uint8), 1)
    assert (answer.status, answer.error.partition(":")[0]) == (400, "classification output tensor too large")


@pytest.mark.spec("srv-H22")
@pytest.mark.parametrize("count", [-1, 1.5, "2", True])
def test_bad_counts(server, count):
    answer = ask(server, "named", SCORES, count)
    text = "Unable to parse 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert answer.error.startswith(text)


def test_an_output_that_does_not_exist(server, snapshot):
    outputs = [{"name": "NONE", "parameters": {"classification": 1}}]
    answer = infer(server, "named", {"IN": SCORES}, outputs=outputs)
    assert answer.status == 400
    assert answer.error.startswith("unexpected inference output 'NONE' for model 'named'")
    assert answer.error == snapshot


@pytest.mark.spec("srv-R23")
def test_label_files_that_cannot_be_used(tmp_path):
    for name, path in (("outside", "../other/labels.txt"), ("absent", "labels.txt"), ("absolute", "/etc/hostname")):
        write_model(tmp_path, name, IDENTITY, config("TYPE_FP32", labels=f'label_filename: "{path}"'))
    with serving(tmp_path, flags=("--exit-on-error=false", "--strict-readiness=false")) as server:
        server.wait_for(
            rf"outside *\| 1 *\| UNAVAILABLE: Unsupported: label file path '{tmp_path}/outside/../other/labels.txt' for "
            "output 'OUT' in model 'outside' is outside model directory"
        )
        server.wait_for(
            r"absolute *\| 1 *\| UNAVAILABLE: Unsupported: label file path '/etc/hostname' for output 'OUT' in"
        )
        server.wait_for(
            rf"absent *\| 1 *\| UNAVAILABLE: Invalid argument: failed to read label file '{tmp_path}/absent/labels.txt' "
            "for output 'OUT' in model 'absent': No such file or directory"
        )
