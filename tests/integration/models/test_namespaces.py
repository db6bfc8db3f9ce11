"""Repositories as namespaces, with many changes at once."""

import asyncio
from itertools import count

import numpy as np
import pytest

from pybackend.errors import AmbiguousModelError
from pybackend.inference.request import InferenceRequest
from tests.support.engine import engine_on, input_tensor, output_array
from tests.support.ensembles import write_ensemble
from tests.support.model_control import CONFIG
from tests.support.repositories import write_model

STEP = {"IN": "IN"}, {"OUT": "OUT"}


def saying(number):
    return f"""
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([{number}], np.float32))]) for _ in requests]
"""


async def ask(engine, name):
    request = InferenceRequest(name, inputs=[input_tensor("IN", np.zeros(1, np.float32))])
    response = await engine.open(name).infer(request)
    number = int(output_array(response, "OUT")[0])
    response.release()
    return number


@pytest.mark.spec("srv-R24")
@pytest.mark.thorough
def test_a_storm_of_loads_in_two_namespaces_does_not_mix_them(tmp_path):
    """Models of one say odd numbers, those of the other even ones; ensembles and requests go on meanwhile."""
    places = [tmp_path / "odd", tmp_path / "even"]
    for number, place in enumerate(places, 1):
        write_model(place, "m", saying(number), CONFIG)
        write_ensemble(place, "whole", [("m", *STEP)])

    async def test():
        async with engine_on(places[0], more_repositories=places[1:], explicit=True, namespacing=True) as engine:
            numbers = count(3)
            loading = True

            async def load(place):
                for _ in range(4):
                    number = next(each for each in numbers if each % 2 == places.index(place) ^ 1)
                    write_model(place, "m", saying(number), CONFIG)
                    await asyncio.gather(
                        *(engine.control.load(f"{place.name}::{name}") for name in ("m", "whole", "m"))
                    )
                    with pytest.raises(AmbiguousModelError):
                        await engine.control.load("m", '{"backend": "python"}')

            async def infer(place):
                told = []
                while loading:
                    told += [await ask(engine, f"{place.name}::{name}") for name in ("m", "whole")]
                return told

            asking = [asyncio.create_task(infer(place)) for place in places]
            await asyncio.gather(*map(load, places))
            loading = False
            odd, even = [{number % 2 for number in told} for told in await asyncio.gather(*asking)]
            assert (odd, even) == ({1}, {0})
            await engine.control.unload(f"{places[0]}::whole", unload_dependents=True)
            assert await ask(engine, "whole") % 2 == 0

    asyncio.run(test())
