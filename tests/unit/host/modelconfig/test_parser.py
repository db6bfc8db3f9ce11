"""config.pbtxt and JSON to documents and back; every way of being wrong is a ModelConfigError that says where."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pybackend.modelconfig.protobuf
from pybackend.errors import ErrorCode, ModelConfigError
from pybackend.modelconfig.loader import finish_config, load_config
from pybackend.modelconfig.parser import (
    FIELD_NAMES,
    Document,
    format_config_text,
    parse_config_json,
    parse_config_text,
    read_config_file,
    serialize_config,
)

RICH = """
name: "rich" backend: "python" max_batch_size: 16
version_policy: { specific: { versions: [ 1, 9007199254740993 ] } }
input [
  { name: "A" data_type: TYPE_STRING dims: [ -1, 2 ] reshape: { shape: [ -1, 1, 2 ] } allow_ragged_batch: true },
  { name: "B" data_type: TYPE_BF16 format: FORMAT_NCHW dims: [ 3, 4, 5 ] optional: true }
]
output { name: "C" data_type: TYPE_INT64 dims: 1 reshape { } label_filename: "labels.txt" }
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 source_input: "A" }
batch_output { target_name: "C" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "A" }
optimization { graph { level: 1 } cuda { graphs: true graph_spec { batch_size: 2 input { key: "A" value { dim: 2 } } } }
  execution_accelerators { cpu_execution_accelerator { name: "x" parameters { key: "k" value: "v" } } } }
dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 18446744073709551615
  priority_levels: 2 default_priority_level: 1 default_queue_policy { timeout_action: DELAY max_queue_size: 7 }
  priority_queue_policy { key: 2 value { allow_timeout_override: true default_timeout_microseconds: 5 } } }
instance_group { name: "g" kind: KIND_MODEL count: 3 passive: true host_policy: "p" profile: "x"
  rate_limiter { resources { name: "R" global: true count: 2 } priority: 1 }
  secondary_devices { kind: KIND_NVDLA device_id: 4 } }
default_model_filename: "src/model.py"
cc_model_filenames { key: "7.5" value: "f" } metric_tags { key: "team" value: "a" }
parameters { key: "k" value { string_value: "v" } }
model_warmup { name: "w" batch_size: 1 inputs { key: "A" value { data_type: TYPE_FP32 dims: 2 zero_data: true } } }
model_operations { op_library_filename: "lib.so" } model_transaction_policy { decoupled: false }
model_repository_agents { agents { name: "checksum" parameters { key: "MD5:1/model.py" value: "00" } } }
response_cache { enable: false }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 0.5, inf ] } } }
"""


def reason(text: str) -> str:
    with pytest.raises(ModelConfigError) as caught:
        parse_config_text(text, "/m/config.pbtxt")
    assert caught.value.code is ErrorCode.INVALID_ARG
    start = "failed to read text proto from /m/config.pbtxt: "
    assert caught.value.message.startswith(start)
    return caught.value.message.removeprefix(start)


@pytest.mark.spec("srv-R12")
def test_text_format() -> None:
    document = parse_config_text(
        """
        # a comment
        name: 'single'  # another
        backend: "py" 'thon'            # adjacent strings are one
        max_batch_size: 0x10
        input: [ { name: "A", data_type: TYPE_FP32; dims: [ 1, -1 ] }, < name: "B" data_type: 11 dims: 1 dims: 2 > ]
        parameters: { key: "k1" value: { string_value: "quote \\" tab \\t \\u00e9 é" } }
        parameters { key: 'k2', value { string_value: '' } }
        instance_group [ { kind: KIND_CPU count: 2 } ]
        instance_group { kind: KIND_MODEL }
        dynamic_batching { }
        """,
        "x",
    )
    assert (document["name"], document["backend"], document["max_batch_size"]) == ("single", "python", 16)
    assert [(t["name"], t["data_type"], t["dims"]) for t in document["input"]] == [
        ("A", "TYPE_FP32", [1, -1]),
        ("B", "TYPE_FP32", [1, 2]),
    ]
    assert document["parameters"] == {"k1": {"string_value": 'quote " tab \t é é'}, "k2": {"string_value": ""}}
    assert [group["kind"] for group in document["instance_group"]] == ["KIND_CPU", "KIND_MODEL"]
    assert document["dynamic_batching"]["preferred_batch_size"] == []


TEXT_ERRORS = [
    "\nfoo: 1",
    'input { nme: "a" }',
    'max_batch_size: "x"',
    "max_batch_size: 99999999999",
    "backend: python",
    "input { data_type: FP32 }",
    "input { data_type: TYPE_FLOAT }",
    "instance_group { kind: X }",
    "input { data_type: 99 }",
    'name: "a" name: "b"',
    "dynamic_batching {} sequence_batching {}",
    "input [ { dims: 1 }, ]",
    "input {\n  dims: 1\n",
    'name: "a\n',
    "name: '\ud800'",
    "max_batch_size 3",
    "[foo.bar]: 1",
    '\nname: "a" # b\n  "\\d"',
    'name: "a" "é\\x"',
    "name: 'a' \udce9",
    "input { data_type: TYPE_FLOAT32 }",
    "\0",
    'parameters { key: "a" value: "b" }',
    'parameters {\n  key: "a"\n  value: yes\n}',
    'parameters: { key: "a", value: 5 }',
    'parameters { key: "a" value { "b" } }',
    'parameters { "a": "b" }',
    'parameters { a: "b" }',
    'input {\n  name: "#{"\n  dims: 1 # {\n\noutput { name: "B" }',
    '\ninput [ {\n  name: "A" }\n',
    "input {\n  reshape {\n shape: 1",
    "input {\n  dims: [1 }\n",
    "input [\n  {\n dims: 1\n ]\n",
    "max_batch_size: 1 }",
    "dynamic_batching: true",
    'max_batch_size: "8"',
    "max_batch_size: 8.5",
    "input { dims: 4, 4 }",
    "input { dims: (4, 4) }",
    'backend = "python"',
    '{"backend": "python"}',
    '"backend": "python"',
    'backend: "python" // mine',
    "backend: \u201cpython\u201d",
    'instance_group { kind: "KIND_CPU" }',
    "input { shape: [1] }",
    "input { dtype: TYPE_FP32 }",
    "dynamic_batching { max_queue_delay_us: 100 }",
    "inputs { dims: 1 }",
    "max_batch: 8",
    "a" * 500 + ": 1",
    'input [\n  { name: "A" dims: [ 1 ],\n  { name: "B" dims: [ 1 ] }\n]',
    'parameters { key: "a" value { { string_value: "b" } } }',
]


@pytest.mark.parametrize("text", TEXT_ERRORS)
def test_text_errors_say_where_and_what(text: str, snapshot) -> None:
    assert reason(text) == snapshot


def test_the_advice_on_a_long_text_is_found_in_no_time() -> None:
    """One long word, or a hundred thousand open brackets, must not take the machine's time."""
    for text in ("input { " * 100_000, "a" * 500_000 + " " * 500_000 + "=", "[" * 1_000_000, '"' + '\\"' * 400_000):
        assert reason(text)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(f"{'K' * 190} {'L' * 90}", f"{'K' * 190} ... (in: "), ("K" * 400, f"{'K' * 100}")],
    ids=["words", "one word"],
)
def test_a_long_reason_ends_between_two_words_if_it_has_some(kind: str, shown: str) -> None:
    said = reason(f"instance_group {{ kind: '{kind}' }}")
    assert shown in said
    assert "LL" not in said


def test_every_message_of_a_document_is_complete() -> None:
    assert parse_config_json({}, "x") == {
        "name": "",
        "platform": "",
        "backend": "",
        "runtime": "",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "instance_group": [],
        "default_model_filename": "",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {},
        "model_warmup": [],
    }


def test_integers_stay_numbers_and_map_keys_are_text() -> None:
    document = parse_config_text(RICH, "x")
    assert document["version_policy"] == {"specific": {"versions": [1, 9007199254740993]}}
    batching = document["dynamic_batching"]
    assert batching["max_queue_delay_microseconds"] == 18446744073709551615
    assert list(batching["priority_queue_policy"]) == ["2"]
    assert batching["default_queue_policy"] == {
        "timeout_action": "DELAY",
        "default_timeout_microseconds": 0,
        "allow_timeout_override": False,
        "max_queue_size": 7,
    }
    assert document["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"] == [0.5, "Infinity"]
    assert document["model_warmup"][0]["inputs"]["A"] == {"data_type": "TYPE_FP32", "dims": [2], "zero_data": True}
    assert document["output"][0]["reshape"] == {"shape": []}


def test_single_precision_floats_keep_their_short_text() -> None:
    document = parse_config_text("sequence_batching { direct { minimum_slot_utilization: 0.1 } }", "x")
    assert document["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1


def test_keys_come_in_the_order_of_the_schema() -> None:
    document = parse_config_text(RICH, "x")
    assert list(document) == [name for name in FIELD_NAMES if name in document]


def test_documents_survive_text_and_json() -> None:
    document = parse_config_text(RICH, "x")
    assert parse_config_text(format_config_text(document), "x") == document
    assert parse_config_json(json.loads(json.dumps(document)), "x") == document


def test_json_may_use_camel_case_numbers_as_text_and_null() -> None:
    document = parse_config_json(
        {"maxBatchSize": "8", "input": [{"dataType": 11, "dims": [2.0, "-1"]}], "platform": None}, "x"
    )
    assert document["max_batch_size"] == 8
    assert document["input"][0]["data_type"] == "TYPE_FP32"
    assert document["input"][0]["dims"] == [2, -1]


JSON_ERRORS: list[tuple[Any, str]] = [
    ({"foo": 1}, "there is no field 'foo'. Known: name, "),
    ({"input": [{"dim": [1]}]}, "there is no field 'input[0].dim'. Did you mean dims?"),
    ({"input": {}}, "field 'input': expected a list, got {}"),
    ({"input": [3]}, "field 'input[0]': expected an object, got 3"),
    (
        {"input": [{"dims": ["x"]}]},
        "field 'input[0].dims[0]': expected an integer from -9223372036854775808 to 92233720",
    ),
    ({"input": [{"data_type": "FP32"}]}, "field 'input[0].data_type': expected one of TYPE_INVALID, TYPE_BOOL, "),
    ({"input": [{"data_type": "\ud800"}]}, "field 'input[0].data_type': expected one of "),
    ({"input": [{"data_type": True}]}, "field 'input[0].data_type': expected one of "),
    ({"input": [{"data_type": []}]}, "field 'input[0].data_type': expected one of "),
    ({"input": [{"optional": 1}]}, "field 'input[0].optional': expected true or false, got 1"),
    ({"max_batch_size": True}, "field 'max_batch_size': expected an integer from -2147483648 to 2147483647, got True"),
    ({"max_batch_size": 2**31}, "got 2147483648"),
    ({"max_batch_size": 1.5}, "got 1.5"),
    ({"max_batch_size": [1] * 50}, "got [1, 1, 1"),
    ({"name": 1}, "field 'name': expected text, got 1"),
    ({"name": "\ud800"}, "field 'name': expected text, got '\\ud800'"),
    ({"parameters": []}, "field 'parameters': expected an object, got []"),
    (
        {"parameters": {"a": "b"}},
        "field 'parameters['a']': expected an object such as {\"string_value\": \"TEXT\"}, got 'b'",
    ),
    ({"metric_tags": {"a": 1}}, "field 'metric_tags['a']': expected text, got 1"),
    (
        {"dynamic_batching": {}, "sequence_batching": {}},
        "only one of 'dynamic_batching' and 'sequence_batching' may be",
    ),
    ({"dynamic_batching": {"priority_queue_policy": {"x": {}}}}, "expected an integer from 0 to 18446744073709551615"),
    ({"sequence_batching": {"direct": {"minimum_slot_utilization": "x"}}}, "minimum_slot_utilization': expected a num"),
]


@pytest.mark.parametrize(("document", "expected"), JSON_ERRORS)
def test_json_errors_name_the_field(document: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_config_json(document, "the model")
    assert caught.value.message.startswith("failed to read model configuration from the model: ")
    assert expected in caught.value.message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, expected in (
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(ModelConfigError) as caught:
            read_config_file(path)
        assert caught.value.message == f"failed to read text proto from {path}: {expected}"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(b'\xef\xbb\xbfname: "a"\r\n')
    assert read_config_file(path)["name"] == "a"


def document_or_refusal(parse: Callable[[Any, str], Document], given: Any) -> Document | str:
    """What ``parse`` makes of any input at all: no other exception may come out of it."""
    try:
        return parse(given, "x")
    except ModelConfigError as error:
        return error.message


@given(
    st.integers(0, len(RICH)), st.integers(0, 12), st.text(max_size=6) | st.sampled_from(['"', "\\x", "[", "}", "-"])
)
def test_damaged_text_is_read_or_refused(start: int, cut: int, inserted: str) -> None:
    damaged = RICH[:start] + inserted + RICH[start + cut :]
    outcome = document_or_refusal(parse_config_text, damaged)
    if isinstance(outcome, str):
        assert outcome.startswith("failed to read text proto from x: ")
    else:
        assert parse_config_json(outcome, "x") == outcome


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["TYPE_FP32", "NaN"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "dims", "data_type", "key", "input", "shape", "reshape", "latest", "num_versions", "x"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*FIELD_NAMES, "x"]), JSON_VALUES, max_size=4))
def test_any_json_is_read_or_refused(document: dict[str, Any]) -> None:
    outcome = document_or_refusal(parse_config_json, document)
    if isinstance(outcome, str):
        assert outcome.startswith("failed to read model configuration from x: ")
    else:
        assert parse_config_json(json.loads(json.dumps(outcome, allow_nan=False)), "x") == outcome


PARAMETER = b'parameters { key: "k" value { string_value: %b } }'
LIKE_CPP = [
    b'# \xc4\xe3\xba\xc3\nname: "a"  # \xff',
    b'name: "a" # \xff "\n\'b\'# "\n\n"c" max_batch_size: 1',
    b"input { dims: [ - 1, -\t2, -  # c \xff\n 3, -4 ] }",
    b'name: "a - 1" version_policy { specific { versions: - 9223372036854775808 } }',
    b"model_metrics { metric_control { histogram_options { buckets: [ - inf, - .5, -1e3 ] } } }",
    PARAMETER % rb'"what\?"',
    PARAMETER % rb'"\\\\?" "\\\?"',
    PARAMETER % rb"'it\'s' \"\\\"#\"  # '\n  '-'",
    PARAMETER % rb'"\a\b\f\n\r\t\v\X41\x414\0\1234\101"',
    PARAMETER % rb'"\u00e9\ud83d\ude00\U0001F600\xc3" "\xa9"',
    PARAMETER % '"é\t\x7f\x01"'.encode(),
    PARAMETER % rb'"\d"',
    PARAMETER % rb'"\8"',
    PARAMETER % rb'"\x"',
    PARAMETER % rb'"\u12"',
    PARAMETER % b'"a\\\nb"',
    b'\xe9: "a"',
    b"max_batch_size: - - 1",
    b'name: - "a"',
]


def cpp_parser(text: bytes) -> bytes | None:
    """The message that protobuf's parser in C++ reads, None if it refuses the text."""
    definitions = Path(pybackend.modelconfig.protobuf.__path__[0], "definitions")
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{definitions}", "--encode=inference.ModelConfig"]
    done = subprocess.run([*protoc, "model_config.proto"], input=text, capture_output=True, check=False)
    return None if done.returncode else done.stdout


@pytest.mark.spec("srv-R12")
@pytest.mark.parametrize("text", LIKE_CPP)
def test_odd_texts_are_read_as_by_the_parser_of_the_reference(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(text)
    try:
        read: bytes | None = serialize_config(read_config_file(path))
    except ModelConfigError:
        read = None
    assert read == cpp_parser(text)


@pytest.mark.parametrize("written", [b"caf\xe9", rb"caf\xe9", rb"caf\351", rb"caf\751"])
def test_bytes_that_are_not_utf_8_are_read_with_a_warning(tmp_path: Path, written: bytes) -> None:
    text = b'backend: "python" ' + PARAMETER % (b'"%b"' % written)
    assert cpp_parser(text) is not None
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.py").touch()
    (tmp_path / "config.pbtxt").write_bytes(text)
    config = finish_config(load_config(tmp_path, auto_complete=True), None, 0)
    assert config.parameters["k"] == "caf\ufffd"
    assert "bytes that are not UTF-8, which are read as \ufffd: save the file as UTF-8" in config.warnings[0]
