"""``Tensor.empty``: outputs that are filled where they are sent from, and what becomes of their memory."""

from pathlib import Path

import numpy as np
import pytest

from pybackend_wire.messages import INLINE_BYTES
from tests.support.laboratory import laboratory, write_laboratory
from tests.support.served import served

DLPACK_PEER = Path(__file__).parents[2] / "unit/sdk/dlpack_peer.py"
SMALL, LARGE = 4, INLINE_BYTES  # elements of 4 bytes: inside the frame, and in shared memory
MB_OF_FP32 = 1 << 18
MAKE = 'made = pb_utils.Tensor.empty("OUT", [{size}], np.float32)\nmade.as_numpy()[:] = np.arange({size})\n'
RETURN = "return [pb_utils.InferenceResponse([made])]\n"


@served(all_survive=True)
def server(repository):
    write_laboratory(repository)
    (repository / "laboratory/1/dlpack_peer.py").write_text(DLPACK_PEER.read_text())


@pytest.fixture(scope="module")
def lab(server):
    return laboratory(server)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint16", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(SMALL,), (LARGE,), (3, LARGE), (0, 2), ()], ids=str)
def test_every_dtype_and_shape_arrives(lab, dtype, shape):
    answer = lab(
        f"""
        made = pb_utils.Tensor.empty("OUT", {shape}, "{dtype}")
        assert made.shape() == {list(shape)} and made.as_numpy().dtype == "{dtype}"
        made.as_numpy()[...] = np.arange({int(np.prod(shape))}).reshape({shape}) % 2
        return [pb_utils.InferenceResponse([made])]
        """
    )
    expected = (np.arange(int(np.prod(shape))).reshape(shape) % 2).astype(dtype)
    assert answer["OUT"].dtype == expected.dtype
    assert answer["OUT"].shape == shape
    assert answer["OUT"].tobytes() == expected.tobytes()


def test_a_large_output_is_not_copied(lab):
    """The array becomes read-only where its own memory is sent; a copy would leave it alone."""
    lab(MAKE.format(size=LARGE) + "state['kept'] = made.as_numpy()\n" + RETURN)
    found = lab("return out(OUT=text(state['kept'].flags.writeable, state.pop('kept')[-1]))")["OUT"].tolist()
    assert found == [b"False", str(float(LARGE - 1)).encode()]


def test_other_libraries_fill_it_too(lab):
    answer = lab(
        f"""
        made = pb_utils.Tensor.empty("OUT", [{LARGE}], np.float32)
        import dlpack_peer
        library = dlpack_peer.Consumer(made.to_dlpack())
        library.write(np.full({LARGE}, 7, np.float32).tobytes())
        library.release()
        return [pb_utils.InferenceResponse([made])]
        """
    )
    assert answer["OUT"].tolist() == [7.0] * LARGE


def test_bf16_is_filled_through_dlpack_or_not_at_all(lab):
    kind, message = lab(
        """
        made = pb_utils.Tensor.empty("OUT", [2], "BF16")
        try:
            made.as_numpy()
        except Exception as error:
            return out(OUT=text(made.triton_dtype().name, error))
        """
    )["OUT"].tolist()
    assert kind == b"BF16"
    assert message.startswith(b"Tensor dtype is BF16")


def test_what_a_model_keeps_is_not_used_for_other_responses(lab):
    """Its array views the memory of an answer that has left; nobody else's answer may come to lie there."""
    lab(MAKE.format(size=LARGE) + "state['kept'] = made\n" + RETURN)
    for value in range(5):
        code = f"made = pb_utils.Tensor.empty('OUT', [{LARGE}], np.float32)\nmade.as_numpy()[:] = -{value}\n"
        assert lab(code + RETURN)["OUT"].tolist() == [-value] * LARGE
    answer = lab("return [pb_utils.InferenceResponse([state.pop('kept')])]")
    assert answer["OUT"].tolist() == list(range(LARGE))


def test_one_tensor_in_two_responses(lab):
    answer = lab(
        MAKE.format(size=LARGE)
        + "other = pb_utils.Tensor('OUT0', made.as_numpy())\n"
        + "part = pb_utils.Tensor('OUT1', made.as_numpy()[:8])\n"
        + "return [pb_utils.InferenceResponse([made, other, part])]"
    )
    assert answer["OUT"].tolist() == answer["OUT0"].tolist() == list(range(LARGE))
    assert answer["OUT1"].tolist() == list(range(8))


def test_memory_of_tensors_that_are_dropped_is_used_again(lab):
    """20 times 64 MB, sent or not: far more than an instance's output memory holds."""
    code = MAKE.format(size=64 * MB_OF_FP32) + "made = pb_utils.Tensor('OUT', made.as_numpy()[:1].copy())\n"
    for _ in range(10):
        assert lab(code + RETURN)["OUT"].tolist() == [0]
    addresses = set()
    for _ in range(10):
        code = MAKE.format(size=MB_OF_FP32) + "where = made.as_numpy().__array_interface__['data'][0]\n"
        answer = lab(code + "return [pb_utils.InferenceResponse([made, pb_utils.Tensor('OUT0', np.array([where]))])]")
        addresses.add(answer["OUT0"].item())
    assert len(addresses) < 10, "every output has lain somewhere else"


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ("'', [1], 'f4'", "TritonModelException", "Tensor name cannot be an empty string."),
        ("3, [1], 'f4'", "TypeError", "incompatible"),
        ("'x', [1], object", "TritonModelException", "An empty tensor cannot have dtype object."),
        ("'x', [1], 'S4'", "TritonModelException", "An empty tensor cannot have dtype |S4."),
        ("'x', [1], '>f4'", "TritonModelException", "An empty tensor cannot have dtype >f4."),
        ("'x', [1], 'nonsense'", "TypeError", "nonsense"),
        ("'x', [2, -1], 'f4'", "TritonModelException", "Tensor 'x' cannot have the shape [2, -1]"),
        ("'x', [1.5], 'f4'", "TypeError", "float"),
        ("'x', 3, 'f4'", "TypeError", "int"),
        ("'x', [2**40], 'f4'", "OutputMemoryExhausted", "does not fit into the output memory"),
    ],
)
def test_arguments_are_checked(lab, arguments, kind, text):
    found, message = lab(
        f"try:\n    pb_utils.Tensor.empty({arguments})\nexcept Exception as error:\n"
        "    return out(OUT=text(type(error).__name__, error))"
    )["OUT"].tolist()
    assert found.decode() == kind
    assert text in message.decode()
