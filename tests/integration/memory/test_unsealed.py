"""Tensor memory where memfd cannot be had: slower, but right, and nothing of it stays behind."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from pybackend.inference.request import InferenceRequest
from pybackend.ipc import segment
from pybackend_wire.errors import RemoteProtocolError
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.held_files import shared_memory
from tests.support.repositories import IDENTITY, identity_config, write_model

SCRIPTED = Path(__file__).parents[1] / "ipc" / "scripted_stub"


@pytest.fixture
def without_memfd(monkeypatch):
    monkeypatch.setattr(segment, "HAS_MEMFD", False)


def test_tensors_cross_in_both_directions(without_memfd, tmp_path):
    write_model(tmp_path, "identity", IDENTITY, identity_config())
    sent = [np.arange(100_000, dtype=np.float32) + number for number in range(3)]

    async def main():
        async with engine_on(tmp_path) as engine:
            model = engine.repository.catalogue.find("identity")
            for array in sent:
                response = await engine.open(model.name, model.version).infer(
                    InferenceRequest("identity", inputs=[input_tensor("IN", array)])
                )
                np.testing.assert_array_equal(output_array(response, "OUT"), array)
                response.release()
            here, there = shared_memory(os.getpid()), shared_memory(model.instances[0].pid)
            assert here
            assert there
            assert all(" (deleted)" in name for name in here | there)

    asyncio.run(main())


def test_the_segment_has_no_name_and_is_read_by_copy(without_memfd):
    made = segment.Segment(8192)
    try:
        assert not made.sealed
        made.write(100, b"tensor")
        assert bytes(made.read(100, 6)) == b"tensor"
        # A stub that cuts the segment costs a request, not the host.
        os.ftruncate(made.descriptor, 50)
        with pytest.raises(RemoteProtocolError, match="cut short"):
            made.read(100, 6)
        target = os.readlink(f"/proc/self/fd/{made.descriptor}")
        assert not Path(target).exists()
    finally:
        made.close()


CUTS_ITS_MEMORY = """
class TritonPythonModel:
    def execute(self, requests):
        import os
        from pybackend_stub import memory, tensor_io
        close = os.close

        def cut(descriptor):
            os.ftruncate(descriptor, 0)
            close(descriptor)

        def place(self, payload, nbytes):
            block = self._allocate(nbytes)
            return block.segment, block.offset

        array = requests[0].inputs()[0].as_numpy()
        if array[0] < 0:
            memory.os.close, tensor_io.OutputWriter._copy = cut, place
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
"""


def test_a_model_that_cuts_its_output_memory_costs_its_request_alone(without_memfd, tmp_path):
    write_model(tmp_path, "rogue", CUTS_ITS_MEMORY, identity_config())

    async def main():
        async with engine_on(tmp_path) as engine:
            for served, array in ((False, -np.ones(100_000, np.float32)), (True, np.ones(100_000, np.float32))):
                request = InferenceRequest("rogue", inputs=[input_tensor("IN", array)])
                response = await asyncio.wait_for(engine.open("rogue").infer(request), 60)
                assert (response.error is None) is served, response.error
                response.release()

    asyncio.run(main())


def test_a_sealed_segment_keeps_its_size():
    made = segment.Segment(8192)
    try:
        assert made.sealed
        for size in (4096, 16384):
            with pytest.raises(PermissionError):
                os.ftruncate(made.descriptor, size)
    finally:
        made.close()


def test_a_process_that_cuts_the_count_of_its_executions_and_dies_leaves_nobody_without_an_answer(
    without_memfd, tmp_path
):
    code = "def execute(requests):\n    stub.segments[stub.segment(PROGRESS)].resize(1)\n    os._exit(3)\n"
    (write_model(tmp_path, "rogue", "", identity_config()) / "1" / "model.py").write_text(code)

    async def main():
        async with engine_on(tmp_path, bundle=SCRIPTED) as engine:
            request = InferenceRequest("rogue", inputs=[input_tensor("IN", np.ones(4, np.float32))])
            response = await asyncio.wait_for(engine.open("rogue").infer(request), 20)
            assert response.error is not None
            assert response.error.message.endswith("The process exited with status 3.")

    asyncio.run(main())
