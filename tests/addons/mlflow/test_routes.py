"""MLflow's routes in plain HTTP: each form of a body becomes a model's tensors, the answers, and the errors in MLflow's
form."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection

import pytest

from tests.support.repositories import tensors, write_model
from tests.support.server import serving

pytestmark = pytest.mark.e2e

TABLE = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            given = {each.name(): each.as_numpy() for each in request.inputs()}
            count = len(given["price"])
            total = given["price"] * given["count"]
            texts = [f"{name.decode()} {request.parameters()}" for name in given["name"][:, 0]]
            lists = given.get("vector", np.zeros((count, 2)))
            said = np.array([text.encode() for text in texts], object).reshape(count, 1)
            found = {"total": total, "said": said, "lists": lists.astype(np.float32)}
            names = request.requested_output_names()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor(name, found[name]) for name in names]))
        return answers
"""
COLUMNS = tensors(price=("TYPE_FP64", [1]), count=("TYPE_INT64", [1]), name=("TYPE_STRING", [1]))
TABLE_CONFIG = f"""
backend: "python"
max_batch_size: 64
input [ {COLUMNS}, {{ name: "vector" data_type: TYPE_FP32 dims: [2] optional: true }} ]
output [ {tensors(total=("TYPE_FP64", [1]), said=("TYPE_STRING", [1]))} ]
"""
SUM = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("output", rows - rows[:, ::-1])]))
        return answers
"""
SUM_CONFIG = f"""
backend: "python"
max_batch_size: 64
input [ {tensors(input=("TYPE_FP32", [2]))} ]
output [ {tensors(output=("TYPE_FP32", [2]))} ]
parameters {{ key: "MLFLOW_COLUMNS" value {{ string_value: '["a", "b"]' }} }}
"""
HELLO = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        said = pb_utils.Tensor("said", np.array([b"hello"], object))
        return [pb_utils.InferenceResponse([said]) for _ in requests]
"""


BYTES = HELLO.replace('b"hello"', 'b"\\xff"')


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    models = tmp_path_factory.mktemp("mlflow")
    write_model(models, "table", TABLE, TABLE_CONFIG)
    write_model(models, "sum", SUM, SUM_CONFIG)
    write_model(models, "hello", HELLO, f'backend: "python"\noutput [ {tensors(said=("TYPE_STRING", [1]))} ]')
    write_model(models, "bytes", BYTES, f'backend: "python"\noutput [ {tensors(said=("TYPE_STRING", [1]))} ]')
    with serving(models, flags=("--allow-mlflow",)) as server:
        yield server


@pytest.fixture
def ask(server):
    with closing(HTTPConnection(server.url)) as connection:

        def ask(model, body, content_type="application/json", status=200):
            data = body if isinstance(body, bytes | str) else json.dumps(body)
            path = f"/v2/models/{model}/invocations" if model else "/invocations"
            connection.request("POST", path, data, {"Content-Type": content_type})
            response = connection.getresponse()
            text = response.read()
            assert response.status == status, text
            return text.decode() if status == 415 else json.loads(text)

        yield ask


ROWS = [[1.5, 2, "a"], [None, 3.0, "b"]]
EXPECTED = {"predictions": [{"total": 3.0, "said": "a {}"}, {"total": None, "said": "b {}"}]}


def test_every_form_of_a_table_reaches_the_columns(ask):
    columns = ["price", "count", "name"]
    records = [dict(zip(columns, row, strict=True)) for row in ROWS]
    by_column = {name: [row[place] for row in ROWS] for place, name in enumerate(columns)}
    turned = {"columns": ["other", *reversed(columns)], "index": [7, 8], "data": [[0, *reversed(row)] for row in ROWS]}
    for body in (
        {"dataframe_split": {"columns": columns, "data": ROWS}},
        {"dataframe_split": turned},
        {"dataframe_records": records},
        {"instances": records},
        {"inputs": records},
        {"inputs": by_column},
        {"inputs": ROWS},
        {"instances": ROWS},
        {"dataframe_split": {"data": ROWS}},
        json.dumps({"inputs": by_column}).replace("null", "NaN"),
    ):
        assert ask("table", body) == EXPECTED, body
    text = 'count,price,name,vain\r\n2,1.5,"a",\r\n3,,b,x\r\n'
    assert ask("table", text, "text/csv; charset=utf-8") == EXPECTED
    assert ask("table/versions/1", {"inputs": {"price": 2, "count": 2, "name": "x"}, "params": {"k": 1, "l": [1]}}) == {
        "predictions": [{"total": 4.0, "said": 'x {"k": 1, "l": "[1]"}'}]
    }


def test_a_model_with_one_input_gets_the_columns_in_its_order(ask):
    for body in (
        {"inputs": [[5, 2], [1, 1]]},
        {"instances": [[5, 2], [1, 1]]},
        {"dataframe_split": {"columns": ["b", "c", "a"], "data": [[2, 9, 5], [1, 9, 1]]}},
        {"dataframe_split": {"columns": [0, 1], "data": [[5, 2], [1, 1]]}},
        {"inputs": {"b": [2, 1], "a": [5, 1]}},
        {"inputs": {"input": [[5, 2], [1, 1]]}},
        {"instances": [{"input": [5, 2]}, {"input": [1, 1]}]},
    ):
        assert ask("sum", body) == {"predictions": [[3, -3], [0, 0]]}, body
    assert ask("sum", "b,a\n2,5\n", "text/csv") == {"predictions": [[3, -3]]}


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("sum", b"{", "the body is no JSON"),
        ("sum", b"[1]", "the body must be a JSON object with one of dataframe_split"),
        ("sum", b'{"inputs": ' + b"[" * 90_000, "the body is no JSON"),
        ("sum", b'{"inputs": ' + b"[]," * 110_000, "more than 100000 lists"),
        (
            "sum",
            {"input": [[1, 2]]},
            "exactly one of dataframe_split, dataframe_records, instances, inputs; it has 'input'",
        ),
        ("sum", {"inputs": [], "instances": []}, "exactly one of"),
        ("sum", {"inputs": [[1, 2], [1]]}, "lists of different lengths"),
        ("sum", {"inputs": [[1, 2, 3]]}, r"shape [1,3], and model 'sum' takes [-1,2]"),
        ("sum", {"inputs": [[1, "x"]]}, "input 'input' takes FP32, and 'x' is none"),
        ("sum", {"inputs": [[1, True]]}, "input 'input' takes FP32, and True is none"),
        ("sum", {"inputs": [[1, {}]]}, "input 'input' takes FP32"),
        ("sum", {"dataframe_split": {"columns": ["a"], "data": [[1]]}}, "lacks the columns 'b' of model 'sum'"),
        ("sum", {"dataframe_split": {"columns": ["a", "b"], "data": [[1]]}}, "row 1 of the table has 1 values"),
        ("sum", {"dataframe_split": {"columns": ["a", "a"], "data": []}}, "two columns of the table"),
        ("sum", {"dataframe_split": [1]}, "'dataframe_split' must be an object"),
        ("sum", {"dataframe_records": [1]}, "'dataframe_records' must be a list of objects"),
        ("sum", {"inputs": {"a": [1], "b": [1, 2]}}, "have different lengths"),
        ("sum", {"inputs": {}}, "lacks the columns 'a', 'b' of model 'sum'"),
        ("sum", {"dataframe_records": [{"a": 1}, 2]}, "'dataframe_records' must be a list of objects"),
        ("sum", {"dataframe_split": {"columns": ["a", []], "data": []}}, "without lists and objects within"),
        ("sum", {"inputs": [[1, 2]], "params": {"a": list(range(20_000))}}, "'params' have more than 65536 characters"),
        ("table", {"dataframe_split": {"columns": list(range(20_001)), "data": []}}, "more than 20000 columns"),
        (
            "table",
            {"inputs": dict.fromkeys(map(str, range(20_001)), 1)},
            "an object of the body has more than 20000 members",
        ),
        ("table", {"inputs": [{str(each): 1} for each in range(20_001)]}, "more than 20000 columns"),
        ("table", {"inputs": [[0] * 20_001]}, "more than 20000 columns"),
        (
            "table",
            {"dataframe_split": {"columns": ["price", "count", "name"], "data": [[True, 1, "a"]]}},
            "input 'price' takes FP64, and True is none",
        ),
        (
            "table",
            {"instances": [{"price": 1, "count": True, "name": "a"}]},
            "input 'count' takes INT64, and True is none",
        ),
        ("sum", {"inputs": [[1, 2]], "params": []}, "'params' must be an object"),
        ("sum", {"inputs": [[1, 2]], "params": {"triton_x": 1}}, "reserved"),
        ("table", {"inputs": {"price": [1], "count": [1.5], "name": ["a"]}}, "takes INT64, and 1.5 is none"),
        ("table", {"inputs": {"price": [1], "count": [2**70], "name": ["a"]}}, "takes INT64"),
        ("table", {"inputs": {"price": [1], "count": [1], "name": [None]}}, "takes BYTES, and an empty value is none"),
        ("table", {"inputs": {"price": [1], "count": [1]}}, "missing required input(s) ['name']"),
        (
            "table",
            {"inputs": {"prize": [1]}},
            "the table has the columns 'prize', and model 'table' has the inputs 'price'",
        ),
        ("table", {"inputs": [[1, 2]]}, "the table has the columns '0', '1', and model 'table' has the inputs 'price'"),
        ("", {"inputs": 1}, "this one serves 4: POST /v2/models/NAME/invocations"),
    ],
)
def test_what_no_tensor_holds_is_refused_in_mlflows_form(ask, model, body, message):
    answer = ask(model, body, status=400)
    assert answer["error_code"] == "BAD_REQUEST"
    assert message in answer["message"]


def test_other_media_types_and_models_are_refused(ask):
    assert "must be application/json or text/csv" in ask("sum", b"PAR1", "application/vnd.apache.parquet", 415)
    assert "UTF-8" in ask("sum", b"{}", "application/json; charset=latin-1", 415)
    assert ask("sum", "a,b\n\xff".encode("latin-1"), "text/csv", 400)["message"].startswith("the body is no CSV")
    assert ask("nobody", {"inputs": 1}, status=404)["error_code"] == "RESOURCE_DOES_NOT_EXIST"


@pytest.mark.parametrize(
    ("model", "body", "content_type", "message"),
    [
        ("sum", "a,b\n" + "1,2\n" * 100_001, "text/csv", "more than 100000 lines or 1000000 cells"),
        ("sum", "a,b\n" + "\r" * 100_001, "text/csv", "more than 100000 lines or 1000000 cells"),
        ("sum", "a,b\n" + "1," * 1_000_001, "text/csv", "more than 100000 lines or 1000000 cells"),
        ("sum", ",".join(map(str, range(20_001))), "text/csv", "more than 20000 columns"),
        (
            "sum",
            "a,b\n" + '"\n",' * 90_000 + "x" * 200_000,
            "text/csv",
            "a row of the table has more than 524288 characters",
        ),
        ("table", {"inputs": {"prize": [1] * 100_001}}, "application/json", "have more than 100000 rows"),
    ],
)
def test_a_table_that_would_take_hundreds_of_megabytes_is_refused(ask, model, body, content_type, message):
    assert message in ask(model, body, content_type, 400)["message"]


def test_bytes_that_are_no_text_are_refused_with_the_route_that_has_them(server, ask):
    message = "output 'said' holds bytes that are not UTF-8 and cannot be sent as JSON. This route sends JSON only: ask /infer for the output in the binary data format"
    assert ask("bytes", {"instances": [1]}, status=400)["message"] == message
    assert server.request("POST", "/v2/models/bytes/generate", {}).error == message


def test_a_model_without_inputs_leaves_every_column_out(ask):
    for body in ({"instances": [1]}, {"inputs": {"a": 1}}, {"dataframe_split": {"columns": ["a"], "data": [[1]]}}):
        assert ask("hello", body) == {"predictions": ["hello"]}, body


def test_probes_and_a_server_with_one_model(tmp_path):
    write_model(tmp_path, "sum", SUM, SUM_CONFIG)
    flags = ("--allow-mlflow", "--api-key-file", str(tmp_path / "keys"), "--api-key-exempt=health")
    (tmp_path / "keys").write_text("0123456789abcdef")
    with serving(tmp_path, flags=flags) as server, closing(HTTPConnection(server.url)) as connection:
        for path, status in (("/ping", 200), ("/health", 200), ("/version", 401)):
            connection.request("GET", path)
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (status, True)
        for headers, status in (({}, 401), ({"Authorization": "Bearer 0123456789abcdef"}, 200)):
            connection.request("POST", "/invocations", '{"inputs": [[5, 2]]}', headers)
            response = connection.getresponse()
            assert response.status == status
            document = json.loads(response.read())
            assert (
                document == {"predictions": [[3, -3]]} if status == 200 else document["error_code"] == "UNAUTHENTICATED"
            )


def test_without_the_flag_the_routes_do_not_exist(tmp_path):
    write_model(tmp_path, "sum", SUM, SUM_CONFIG)
    with serving(tmp_path) as server, closing(HTTPConnection(server.url)) as connection:
        connection.request("POST", "/v2/models/sum/invocations", "{}")
        response = connection.getresponse()
        assert response.status == 404
        assert "`pybackend serve --allow-mlflow` has them" in json.loads(response.read())["message"]
