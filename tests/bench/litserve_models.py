"""The models of the benchmark as a program of LitServe; it runs in an environment that has LitServe, and knows nothing
else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litserve
import numpy as np

_THREADS = 1


def _forest(repository: Path) -> Callable[[Any], Any]:
    import xgboost

    booster = xgboost.Booster({"nthread": _THREADS})
    booster.load_model(repository / "forest" / "1" / "xgboost.ubj")
    return booster.inplace_predict


def _pipeline(repository: Path) -> Callable[[Any], Any]:
    import joblib

    pipeline = joblib.load(repository.parent / "pipeline.joblib")
    return pipeline.predict_proba


def _network(repository: Path) -> Callable[[Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    session = onnxruntime.InferenceSession(repository / "small" / "1" / "model.onnx", options)
    return lambda rows: session.run(None, {"x": rows})[0]


_LOADERS = {"forest": _forest, "pipeline": _pipeline, "small": _network}


class Model(litserve.LitAPI):
    """One model, which understands requests of the v2 protocol with one input, in JSON."""

    def __init__(self, name: str, repository: Path) -> None:
        super().__init__(api_path=f"/v2/models/{name}/infer")
        self._name = name
        self._repository = repository

    def setup(self, device: str) -> None:
        self._predict = _LOADERS[self._name](self._repository)

    # No annotation: LitServe would take a quoted one for a parameter of the query.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        tensor = request["inputs"][0]
        return np.array(tensor["data"], np.float32).reshape(tensor["shape"])

    def predict(self, rows: Any) -> Any:
        return self._predict(rows)

    def encode_response(self, output: Any) -> dict[str, Any]:
        described = {"name": "output", "datatype": "FP32", "shape": list(output.shape), "data": output.ravel().tolist()}
        return {"outputs": [described]}


if __name__ == "__main__":
    repository = Path(sys.argv[1])
    server = litserve.LitServer(
        [Model(name, repository) for name in _LOADERS], accelerator="cpu", healthcheck_path="/v2/health/ready"
    )
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", generate_client_file=False)
