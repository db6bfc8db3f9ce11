"""Several outputs of one name: MLflow's routes, and the own client, take the first."""

import numpy as np
import pytest

from pybackend_client import Client
from tests.e2e.models.test_output_validation import CONFIG, MODEL
from tests.support.repositories import write_model
from tests.support.served import served


@served(flags=("--allow-mlflow",))
def server(repository):
    write_model(repository, "several", MODEL, CONFIG.format(switch="no"))


@pytest.mark.spec("pb-E08")
def test_several_outputs_of_one_name(server):
    rows = {"inputs": {"IN": [6]}}
    assert server.request("POST", "/v2/models/several/invocations", rows).json == {"predictions": [[1] * 4]}
    for url in (server.url, f"grpc://{server.grpc_url}"):
        with Client(url) as client:
            assert client("several").infer(IN=np.int32([[6]]))["OUT"].tolist() == [[1] * 4]
