"""Tensors inside a model: datatypes, shapes, text, memory that is edited, kept, shared and handed to other libraries."""

from pathlib import Path

import numpy as np
import pytest

from pybackend_wire.messages import INLINE_BYTES
from tests.support.connection import binary_body
from tests.support.inference import infer, strings
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.repositories import IDENTITY, identity_config, write_model
from tests.support.served import served
from tests.support.server import serving

SMALL, LARGE = 4, INLINE_BYTES  # elements of 4 bytes: inside the frame, and in shared memory
DLPACK_PEER = Path(__file__).parents[2] / "unit/sdk/dlpack_peer.py"
BF16 = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", r.inputs()[0].to_dlpack())]) for r in requests
        ]
"""
COPY = 'parameters { key: "INPUT_COPY" value { string_value: "yes" } }'
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.inputs()[0].as_numpy()[:] *= 2
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
NUMERIC = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 1, 65535], np.uint16),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "FP16": np.array([-65504, 6e-8, np.inf], np.float16),
    "FP32": np.array([-np.inf, 1e-45, 3.4e38], np.float32),
    "FP64": np.array([5e-324, -0.0, 1.7e308], np.float64),
}


@served(all_survive=True)
def server(repository):
    for name, extra in (("laboratory", ""), ("copying", COPY), ("viewing", COPY.replace("yes", "no"))):
        write_laboratory(repository, name, extra)
        (repository / name / "1/dlpack_peer.py").write_text(DLPACK_PEER.read_text())
    write_model(repository, "identity_bf16", BF16, identity_config("TYPE_BF16"))
    config = identity_config().replace('"OUT"', '"IN"')
    write_model(repository, "echo", ECHO, config)
    write_model(repository, "echo_of_copies", ECHO, config + COPY)
    write_model(repository, "identity_bytes", IDENTITY, identity_config("TYPE_STRING", "[ -1 ]"))


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


def raised(lab, statement, **arrays):
    """Type and text of what a statement raises in a model."""
    code = f"try:\n    {statement}\nexcept Exception as error:\n    return out(OUT=text(type(error).__name__, error))"
    kind, message = lab(code, **arrays)["OUT"].tolist()
    return kind.decode(), message.decode()


# --- Datatypes and shapes ---


@pytest.mark.spec("pb-T02")
@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("repeat", [1, LARGE])
def test_every_numeric_datatype(lab, datatype, repeat):
    array = np.tile(NUMERIC[datatype], repeat)
    answer = lab(
        f"""
        found = array("{datatype}")
        assert found.flags.c_contiguous and found.flags.aligned and found.dtype.isnative
        assert tensor("{datatype}").shape() == [{array.size}] and type(tensor("{datatype}").shape()) is list
        kind = pb_utils.triton_string_to_numpy("TYPE_{datatype}")
        return out(OUT=found, OUT0=text(found.dtype.name, tensor("{datatype}").is_cpu(), np.dtype(kind) == found.dtype))
        """,
        **{datatype: array},
    )
    assert answer["OUT"].dtype == array.dtype
    assert answer["OUT"].tobytes() == array.tobytes()
    assert answer["OUT0"].tolist() == [array.dtype.name.encode(), b"True", b"True"]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_arrays_are_aligned(lab, size):
    """Wherever they lie, and whatever lies before them: compiled code may crash on arrays that are not."""
    code = "return out(OUT=np.array([array(n).__array_interface__['data'][0] % 16 for n in ('FP64', 'INT8', 'FP32')]))"
    arrays = {"INT8": np.ones(size * 4 + 1, np.int8), "FP64": np.ones(size), "FP32": np.ones(size + 1, np.float32)}
    for padding in range(5):
        assert lab(code + " " * padding, **arrays)["OUT"].tolist() == [0, 0, 0]


@pytest.mark.spec("pb-T02")
@pytest.mark.parametrize(
    "expression",
    [
        "np.array(['text'])",
        "np.ones(2, complex)",
        "np.ones(2, '>f4')",
        "np.ones(2, '>i8')",
        "np.array(['2020-01-01'], 'M8[D]')",
        "np.zeros(2, [('a', 'i4')])",
        "np.ones(2, np.longdouble)",
    ],
)
def test_dtypes_that_cannot_be_sent(lab, expression):
    kind, message = raised(lab, f"return out(OUT={expression})")
    assert kind == "TritonModelException"
    assert message.startswith("NumPy dtype is not supported.")


@pytest.mark.spec("pb-T01")
@pytest.mark.parametrize(
    ("expression", "kind", "text"),
    [
        ('pb_utils.Tensor("x", [1, 2])', "TypeError", "incompatible constructor arguments"),
        ('pb_utils.Tensor("x", None)', "TypeError", "incompatible constructor arguments"),
        ("pb_utils.Tensor(None, np.ones(1))", "TypeError", "incompatible constructor arguments"),
        ('pb_utils.Tensor("", None)', "TypeError", "incompatible constructor arguments"),
        ('pb_utils.Tensor(name="x", numpy_array=np.ones(1))', "TypeError", ""),
        ('pb_utils.Tensor("", np.ones(1))', "TritonModelException", "Tensor name cannot be an empty string."),
        ("pb_utils.InferenceResponse(output_tensors=None)", "TypeError", ""),
        (
            "pb_utils.InferenceResponse([None])",
            "TritonModelException",
            "Output tensor for inference response should not be empty.",
        ),
    ],
)
def test_arguments_are_checked_in_a_served_model(lab, expression, kind, text):
    found, message = raised(lab, expression)
    assert found == kind
    assert text in message


@pytest.mark.spec("pb-T03")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("np.arange(12, dtype=np.int32).reshape(3, 4).T", np.arange(12, dtype=np.int32).reshape(3, 4).T),
        ("np.arange(12, dtype=np.int32)[::-3]", np.arange(12, dtype=np.int32)[::-3]),
        ("np.broadcast_to(np.float32(2), (3, 2))", np.full((3, 2), 2, np.float32)),
        ("np.asfortranarray(np.ones((2, 3)))", np.ones((2, 3))),
        ("np.arange(40000, dtype=np.int64).reshape(2, -1).T", np.arange(40000).reshape(2, -1).T),
        ("np.array(7, np.int64)", np.array(7)),
        ("np.empty(0, np.float32)", np.empty(0, np.float32)),
        ("np.empty((3, 0, 2), np.uint8)", np.empty((3, 0, 2), np.uint8)),
        ("np.array([], object)", np.array([], object)),
        ("np.ones((1,) * 32, np.int8)", np.ones((1,) * 32, np.int8)),
        ("array('PLANE')[:, 1:2]", np.array([[2], [4]], np.float32)),
    ],
)
def test_shapes_and_strides(lab, expression, expected):
    answer = lab(f"return out(OUT={expression})", PLANE=np.array([[1, 2], [3, 4]], np.float32))
    assert (answer["OUT"].shape, answer["OUT"].dtype) == (expected.shape, expected.dtype)
    assert answer["OUT"].tolist() == expected.tolist()


@pytest.mark.spec("pb-T03")
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1)])
def test_empty_inputs(lab, shape):
    answer = lab(
        "return out(OUT=array('PLANE'), OUT0=array('PAGE'))",
        PLANE=np.zeros(shape, np.float32),
        PAGE=np.full(shape, b"x", object),
    )
    assert answer["OUT"].shape == answer["OUT0"].shape == shape


# --- Text ---


@pytest.mark.spec("pb-T04")
def test_bytes_in(lab):
    elements = [b"plain", b"", b"nul \0 inside", "ä€😀".encode(), b"\xff\xfe not UTF-8", b"x" * 70_000]
    answer = lab(
        """
        found = array("BYTES")
        assert found.dtype == object and all(type(element) is bytes for element in found)
        page = array("PAGE")
        return out(OUT=found, OUT0=text(*map(len, found)), OUT1=page.T)
        """,
        BYTES=strings(*elements),
        PAGE=strings(*"abcdef").reshape(2, 3),
    )
    assert answer["OUT"].tolist() == elements
    assert [int(length) for length in answer["OUT0"]] == [len(element) for element in elements]
    assert answer["OUT1"].tolist() == [[b"a", b"d"], [b"b", b"e"], [b"c", b"f"]]


@pytest.mark.spec("pb-T04")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (
            "np.array(['text', 'ä', b'bytes', None, 5, 1.5, ['l']], object)",
            ["text", "ä", "bytes", "None", "5", "1.5", "['l']"],
        ),
        ("np.array([b'ab', b'c', b''])", ["ab", "c", ""]),
        ("np.array([b'a\\0b', b'trailing\\0'], object)", ["a\0b", "trailing\0"]),
        ("np.array([[b'a', b'b'], [b'c', b'd']]).T", [["a", "c"], ["b", "d"]]),
        ("np.array(['x'] * 3, np.bytes_)", ["x", "x", "x"]),
        ("np.array([bytearray(b'ba'), memoryview(b'mv'), np.bytes_(b'np')], object)", ["ba", "mv", "np"]),
    ],
)
def test_bytes_out(lab, expression, expected):
    found = lab(f"return out(OUT={expression})")["OUT"]
    assert np.vectorize(bytes.decode, otypes=[object])(found).tolist() == expected


def test_text_that_utf8_cannot_express_is_that_requests_error(lab):
    kind, message = raised(lab, "return out(OUT=np.array(['\\ud800'], object))")
    assert kind == "UnicodeEncodeError"
    assert "surrogates not allowed" in message


def test_huge_strings(server):
    elements = [b"a" * 20_000_000, b"", b"b" * 5_000_000]
    assert infer(server, "identity_bytes", {"IN": strings(*elements)})["OUT"].tolist() == elements


def test_many_strings(server):
    elements = [str(index).encode() for index in range(200_000)]
    assert infer(server, "identity_bytes", {"IN": strings(*elements)})["OUT"].tolist() == elements


# --- Memory ---


@pytest.mark.spec("pb-T05")
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("model", "shows"), [("laboratory", True), ("viewing", True), ("copying", False)], ids=["default", "no", "yes"]
)
def test_edit_in_place(server, model, shows, size):
    """Upstream's arrays are private copies; ours are by ``INPUT_COPY: "yes"``, else the edit shows, as documented."""
    lab = laboratory(server, model)
    array = np.arange(size, dtype=np.float32)
    answer = lab(
        """
        given = tensor("FP32")
        given.as_numpy()[:] += 100
        forwarded = pb_utils.Tensor.from_dlpack("OUT0", given.to_dlpack())  # of the tensor's own memory
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given.as_numpy()), forwarded])]
        """,
        FP32=array,
    )
    assert (answer["OUT"] == array + 100).all()
    assert (answer["OUT0"] == array + 100 * shows).all()


@pytest.mark.spec("pb-T05")
@pytest.mark.parametrize(("model", "factor"), [("echo", 2), ("echo_of_copies", 1)])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_edit_in_place_of_a_tensor_that_is_returned_itself(server, model, factor, size):
    array = np.arange(size, dtype=np.float32)
    assert (infer(server, model, {"IN": array})["IN"] == array * factor).all()


@pytest.mark.spec("pb-T06")
@pytest.mark.parametrize("model", ["laboratory", "copying"])
@pytest.mark.parametrize("size", [SMALL, LARGE, 300_000])
def test_arrays_stay_valid_after_the_request(server, model, size):
    lab = laboratory(server, model)
    array = np.random.default_rng(7).random(size, np.float32)
    keep = "state['array'] = array('FP32')\nstate['text'] = array('BYTES')\nstate['tensor'] = tensor('FP32')\nreturn out(OUT=np.ones(1))"
    lab(keep, FP32=array, BYTES=strings("kept", "x" * 9000))
    for value in range(20):
        lab(
            "return out(OUT=array('FP32') + 1)",
            FP32=np.full(size, value, np.float32),
            BYTES=strings("other", "y" * 9000),
        )
    kept = lab(
        """
        assert state["tensor"].as_numpy() is state["array"]
        return out(OUT=state["array"], OUT0=state["text"])
        """
    )
    assert (kept["OUT"] == array).all()
    assert kept["OUT0"].tolist() == [b"kept", b"x" * 9000]
    # It can still be written to, and nobody else's data is there.
    assert (lab("state['array'][:] = 3\nreturn out(OUT=state['array'])")["OUT"] == 3).all()
    lab("state.clear()\nreturn out(OUT=np.ones(1))")


def test_kept_requests_and_views_stay_valid(lab):
    array = np.arange(LARGE, dtype=np.float32)
    lab("state['request'] = request\nstate['part'] = array('FP32')[5:7]\nreturn out(OUT=np.ones(1))", FP32=array)
    for value in range(5):
        lab("return out(OUT=array('FP32'))", FP32=np.full(LARGE, value, np.float32))
    kept = lab(
        """
        found = pb_utils.get_input_tensor_by_name(state.pop("request"), "FP32").as_numpy()
        return out(OUT=found, OUT0=state.pop("part"))
        """
    )
    assert (kept["OUT"] == array).all()
    assert kept["OUT0"].tolist() == [5, 6]


@served(flags=("--model-memory-limit=16777216",))
def limited(repository):
    """A server whose models may use 16 MB of tensor memory each."""
    for name in ("keeping_arrays", "keeping_requests", "producing"):
        write_laboratory(repository, name)


@pytest.mark.spec("pb-T06")
@pytest.mark.parametrize(
    ("model", "statement"),
    [("keeping_arrays", "state['kept'].append(array('FP32'))"), ("keeping_requests", "state['kept'].append(request)")],
)
def test_memory_of_kept_arrays_is_freed_with_them(limited, model, statement):
    """Five inputs of 2 MB each can be kept, and once they are let go, any number can be handled."""
    lab = laboratory(limited, model)
    array = np.ones(500_000, np.float32)
    lab("state['kept'] = []\nreturn out(OUT=np.ones(1))")
    for _ in range(5):
        assert lab(f"{statement}\nreturn out(OUT=np.ones(1))", FP32=array).status == 200
    refused = [lab(f"{statement}\nreturn out(OUT=np.ones(1))", FP32=array).status for _ in range(10)]
    assert refused[-1] == 503, refused
    assert lab("return out(OUT=text(len(state['kept'])))")["OUT"][0] >= b"5"
    lab("state['kept'].clear()\nreturn out(OUT=np.ones(1))")
    for _ in range(30):
        assert lab("return out(OUT=array('FP32')[:1])", FP32=array)["OUT"].tolist() == [1]


def test_output_beyond_the_limit_is_refused_and_the_model_lives(limited):
    lab = laboratory(limited, "producing")
    pid = lab("return out(OUT=text(os.getpid()))")["OUT"][0]
    for _ in range(3):
        answer = lab("return out(OUT0=np.ones(100_000), OUT=np.ones(4_000_000))")
        assert answer.status == 503
        assert answer.error == (
            "an output of 32000000 bytes does not fit into the output memory that instance 'producing_0_0' may use: its limit is 16777216 "
            "bytes (--model-memory-limit)"
        )
    # What the refused responses had already taken was given back: everything still fits, again and again.
    for _ in range(20):
        assert lab("return out(OUT=np.ones(1_000_000))")["OUT"].sum() == 1_000_000
    assert lab("return out(OUT=text(os.getpid()))")["OUT"][0] == pid


def test_output_array_may_be_used_again(lab):
    code = """
    buffer = state.setdefault("buffer", np.zeros(50_000, np.float32))
    buffer[:] = array("FP32")[0]
    return out(OUT=buffer, OUT0=buffer, OUT1=buffer[:10])
    """
    for value in range(5):
        answer = lab(code, FP32=np.full(1, value, np.float32))
        assert (answer["OUT"] == value).all()
        assert (answer["OUT0"] == value).all()
        assert answer["OUT1"].tolist() == [value] * 10


def test_output_aliases_the_models_array_until_execute_returns(lab):
    """As upstream: edits between the constructor and the return count, for arrays in C order."""
    answer = lab(
        """
        plain, turned = np.zeros(3), np.zeros((2, 2)).T
        made = pb_utils.Tensor("OUT", plain)
        copied = pb_utils.Tensor("OUT0", np.asfortranarray(turned + [[0, 1], [2, 3]]))
        plain[1] = 5
        assert made.as_numpy() is plain
        return [pb_utils.InferenceResponse([made, copied])]
        """
    )
    assert answer["OUT"].tolist() == [0, 5, 0]
    assert answer["OUT0"].tolist() == [[0, 1], [2, 3]]


@pytest.mark.spec("pb-H07")
def test_200_mb(tmp_path):
    """No shared memory has to be sized: nothing of this lies in /dev/shm, whose size is thus of no concern."""
    write_model(tmp_path, "identity", IDENTITY, identity_config("TYPE_UINT8"))
    array = np.arange(50_000_000, dtype=np.uint32).view(np.uint8)
    assert array.nbytes == 200_000_000
    tensor = {"name": "IN", "datatype": "UINT8", "shape": [array.size], "parameters": {"binary_data_size": array.size}}
    body, headers = binary_body({"inputs": [tensor], "parameters": {"binary_data_output": True}}, array.data)
    with serving(tmp_path) as server:
        reply = server.infer("identity", body, headers)
        size = int(reply.headers["inference-header-content-length"])
        assert reply.body.endswith(array.data)
        assert len(reply.body) == size + array.nbytes
        for pid in (server.process.pid, *server.stub_pids()):
            mapped = Path(f"/proc/{pid}/maps").read_text()
            assert "/dev/shm" not in mapped
            assert "memfd:" in mapped


# --- NaN ---


def test_not_a_number_and_infinities(server, lab):
    array = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    answer = lab("return out(OUT=array('FP32'), OUT0=text(*array('FP32')))", FP32=array)
    assert answer["OUT"].tobytes() == array.tobytes()
    assert answer["OUT0"].tolist() == [b"nan", b"inf", b"-inf", b"-0.0"]
    tensor = {
        "name": "CODE",
        "datatype": "BYTES",
        "shape": [1],
        "data": ["return out(OUT=np.array([np.nan, -np.inf]))"],
    }
    reply = server.infer("laboratory", {"inputs": [tensor]})
    assert reply.status == 200
    assert b'"data":[NaN,-Infinity]' in reply.body


# --- DLPack ---


@pytest.mark.spec("pb-T07")
@pytest.mark.parametrize("datatype", NUMERIC)
def test_dlpack_with_another_library(lab, datatype):
    """Both ways inside a model, with a producer and a consumer of our own that know the protocol and nothing else."""
    array = np.tile(NUMERIC[datatype], LARGE)
    answer = lab(
        f"""
        import dlpack_peer
        given = tensor("{datatype}")
        assert given.__dlpack_device__() == (dlpack_peer.CPU, 0)
        consumer = dlpack_peer.Consumer(given.to_dlpack())
        again = dlpack_peer.Consumer(given.__dlpack__())
        seen = consumer.array()
        # No copy: both look at the memory that the input lies in.
        assert consumer.managed.data == again.managed.data == given.as_numpy().__array_interface__["data"][0]
        consumer.release(), again.release()
        producer = state["producer"] = dlpack_peer.Producer(seen.copy())
        made = pb_utils.Tensor.from_dlpack("OUT", producer)
        capsule = pb_utils.Tensor.from_dlpack("OUT0", dlpack_peer.Producer(np.arange(6.0).reshape(2, 3)).capsule())
        assert producer.deleted == 0
        return [pb_utils.InferenceResponse([made, capsule])]
        """,
        **{datatype: array},
    )
    assert answer["OUT"].dtype == array.dtype
    assert answer["OUT"].tobytes() == array.tobytes()
    assert answer["OUT0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    # The memory went back to its library once the response was sent.
    assert lab("gc.collect()\nreturn out(OUT=text(state.pop('producer').deleted))")["OUT"].tolist() == [b"1"]


@pytest.mark.spec("pb-T07")
def test_dlpack_with_numpy(lab):
    answer = lab(
        """
        view = np.from_dlpack(tensor("FP32"))
        assert view.__array_interface__["data"] == array("FP32").__array_interface__["data"] or not view.flags.writeable
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", view * 2)])]
        """,
        FP32=np.arange(5, dtype=np.float32),
    )
    assert answer["OUT"].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.spec("pb-T07")
def test_dlpack_memory_outlives_the_request(lab):
    array = np.arange(LARGE, dtype=np.float32)
    lab(
        "import dlpack_peer\nstate['held'] = dlpack_peer.Consumer(tensor('FP32').to_dlpack())\nreturn out(OUT=np.ones(1))",
        FP32=array,
    )
    for value in range(5):
        lab("return out(OUT=array('FP32'))", FP32=np.full(LARGE, value, np.float32))
    kept = lab("held = state.pop('held')\nfound = held.array()\nheld.release()\nreturn out(OUT=found)")
    assert (kept["OUT"] == array).all()


@pytest.mark.torch
@pytest.mark.spec("pb-T07", "pb-T09")
def test_dlpack_with_torch(lab):
    bits = np.array([0x3F80, 0x4000, 0xC040], np.uint16)  # 1, 2 and -3
    answer = lab(
        """
        import torch
        from torch.utils.dlpack import from_dlpack, to_dlpack
        given = from_dlpack(tensor("FP32").to_dlpack())
        half = torch.from_dlpack(tensor("BF16"))
        assert half.dtype == torch.bfloat16 and half.tolist() == [1, 2, -3]
        outputs = [
            pb_utils.Tensor.from_dlpack("OUT", to_dlpack(given * 2)),
            pb_utils.Tensor.from_dlpack("OUT0", half * 2),
            pb_utils.Tensor.from_dlpack("OUT1", torch.ones(2, 2, dtype=torch.bool)),
        ]
        return [pb_utils.InferenceResponse(outputs)]
        """,
        FP32=np.arange(LARGE, dtype=np.float32),
        BF16=("BF16", bits),
    )
    assert (answer["OUT"] == 2 * np.arange(LARGE)).all()
    assert answer["OUT0"].tolist() == [0x4000, 0x4080, 0xC0C0]
    assert answer["OUT1"].tolist() == [[True, True], [True, True]]


@pytest.mark.spec("pb-T08")
@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "pb_utils.Tensor.from_dlpack('OUT', dlpack_peer.Producer(np.ones((2, 2)), strides=(1, 2)))",
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported.",
        ),
        ("tensor('BYTES').to_dlpack()", "DLPack does not have support for string tensors."),
        (
            "pb_utils.Tensor.from_dlpack('OUT', np.ones(2).tobytes())",
            "Provided tensor is not supported. Tensor must be a DLPack capsule",
        ),
        (
            "pb_utils.Tensor.from_dlpack('OUT', dlpack_peer.Producer(np.ones(2), device=(dlpack_peer.METAL, 0)))",
            "DLDevice type 8 is not support by Python backend.",
        ),
        ("pb_utils.Tensor.from_dlpack('OUT', dlpack_peer.Producer(np.ones(2, complex)))", "Dtype is invalid."),
    ],
)
def test_dlpack_refusals(lab, statement, text):
    kind, message = raised(lab, f"import dlpack_peer; {statement}", BYTES=strings("x"))
    assert (kind, message.startswith(text)) == ("TritonModelException", True), message


@pytest.mark.spec("pb-T09")
@pytest.mark.parametrize("size", [SMALL, 3 * LARGE])
def test_bf16_by_dlpack(server, size):
    bits = (np.arange(size) % 65536).astype(np.uint16)
    answer = infer(server, "identity_bf16", {"IN": ("BF16", bits)})
    assert answer["OUT"].tobytes() == bits.tobytes()
    assert answer.document["outputs"][0]["datatype"] == "BF16"


@pytest.mark.spec("pb-T09")
def test_bf16_is_no_numpy_array(lab):
    bits = np.array([0x3F80], np.uint16)
    assert raised(lab, "array('BF16')", BF16=("BF16", bits)) == (
        "TritonModelException",
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead.",
    )
    text = "return out(OUT=text(tensor('BF16').shape(), tensor('BF16').is_cpu(), tensor('BF16').triton_dtype().name))"
    assert lab(text, BF16=("BF16", bits))["OUT"].tolist() == [b"[1]", b"True", b"BF16"]
