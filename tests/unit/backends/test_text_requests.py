"""What the backends that serve language models read from requests."""

import numpy as np
import pytest

from pybackend_backends.text_requests import RequestError, settings_of
from pybackend_backends.transformers.sampling import is_setting
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.tensor import Tensor


def request(text, **parameters):
    tensor = Tensor("sampling_parameters", np.array([text.encode()], np.object_))
    return InferenceRequest(inputs=[tensor], requested_output_names=[], model_name="m", parameters=parameters)


def test_the_input_wins_over_request_parameters():
    asked = request('{"max_tokens": 4}', max_tokens=3, seed=1, priority_of_mine=2)
    assert settings_of(asked, is_setting) == {"max_tokens": 4, "seed": 1}


@pytest.mark.parametrize("text", ["[1]", "{", "3"])
def test_settings_that_are_no_object_are_refused(text):
    with pytest.raises(RequestError, match="'sampling_parameters' must be a JSON object"):
        settings_of(request(text), is_setting)
