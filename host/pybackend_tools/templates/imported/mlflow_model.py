"""Serves an MLflow model by its python_function flavor. The inputs are the columns, or the tensors, of its signature."""

import json
import os
from functools import partial

import numpy as np
import triton_python_backend_utils as pb_utils
from pybackend_sdk.backend import execute_batch


class TritonPythonModel:
    """A model that `mlflow.pyfunc.load_model` loads."""

    def initialize(self, args):
        """Load the model."""
        self.model = loaded(os.path.join(args["model_repository"], args["model_version"], "mlflow_model"))
        config = json.loads(args["model_config"])
        self.outputs = {each["name"]: each["data_type"] for each in config["output"]}
        schema = self.model.metadata.get_input_schema()
        self.takes_tensors = schema is not None and schema.is_tensor_spec()
        self.is_nameless = schema is not None and not schema.has_input_names()
        types = {} if self.takes_tensors or schema is None else schema.input_types_dict()
        self.dates = {name for name, kind in types.items() if getattr(kind, "name", "") == "datetime"}
        self.batches = config["max_batch_size"] > 0
        params = getattr(self.model.metadata, "get_params_schema", lambda: None)()
        self.params = {} if params is None else {each.name: each for each in params.params}

    def execute(self, requests):
        """Answer the requests, those with the same parameters together."""
        if not self.params:
            return execute_batch(requests, self.run, batches=self.batches)
        places = {}
        for place, request in enumerate(requests):
            places.setdefault(request.parameters(), []).append(place)
        responses = [None] * len(requests)
        for text, group in places.items():
            run = partial(self.run, params=self.read_params(json.loads(text)))
            alike = [requests[place] for place in group]
            for place, response in zip(group, execute_batch(alike, run, batches=self.batches)):
                responses[place] = response
        return responses

    def read_params(self, given):
        """The parameters of `predict` among those of a request; lists and objects are JSON."""
        known = {name: value for name, value in given.items() if name in self.params}
        for name, value in known.items():
            if isinstance(value, str) and getattr(self.params[name], "shape", None) is not None:
                known[name] = json.loads(value)
        return known

    def run(self, inputs, names, params=None):
        """The outputs of these names for rows of all requests."""
        rows = len(next(iter(inputs.values())))
        argument = self.argument(inputs)
        result = self.model.predict(argument, params=params) if params else self.model.predict(argument)
        found = self.by_name(result)
        return {name: self.tensor(found[name], self.outputs[name], rows) for name in names}

    def argument(self, inputs):
        """The argument of `predict`: a DataFrame, an array, or a dictionary of arrays."""
        texts = {name: decoded(array) for name, array in inputs.items()}
        if self.takes_tensors:
            return next(iter(texts.values())) if self.is_nameless else texts
        import pandas

        table = pandas.DataFrame({name: array.reshape(-1) for name, array in texts.items()})
        for name in self.dates.intersection(table.columns):
            table[name] = pandas.to_datetime(table[name])
        if self.is_nameless:
            table.columns = range(len(table.columns))
        return table

    def by_name(self, result):
        """The values of the outputs: the columns of a table, the items of a dictionary, or the whole result."""
        if hasattr(result, "columns"):
            result = {str(name): result[name] for name in result.columns}
        if not isinstance(result, dict):
            array = result if hasattr(result, "shape") else np.asarray(result)
            array = array.to_numpy() if hasattr(array, "to_numpy") else array
            several = len(self.outputs) > 1 and array.ndim == 2
            return dict(zip(self.outputs, array.T if several else [array]))
        if set(self.outputs) <= set(result):
            return result
        return dict(zip(self.outputs, result.values()))

    def tensor(self, values, data_type, rows):
        """An array with a row for each row of the inputs."""
        array = np.asarray(values)
        if data_type == "TYPE_STRING":
            flat = [str(value).encode() for value in array.reshape(-1)]
            array = np.array(flat, np.object_).reshape(array.shape)
        else:
            array = array.astype(pb_utils.triton_string_to_numpy(data_type))
        return array.reshape(rows, -1) if array.ndim < 2 else array


def loaded(directory):
    """The model that MLflow has saved in a directory."""
    try:
        import mlflow.pyfunc

        return mlflow.pyfunc.load_model(directory)
    except ModuleNotFoundError as error:
        raise pb_utils.TritonModelException(
            f"its Python has no module '{error.name}'. Make an environment with `pybackend pack` of the requirements.txt that MLflow "
            "has saved, and import the model again with --environment=ARCHIVE"
        ) from None


def decoded(array):
    """An array of texts instead of bytes; other arrays as they are."""
    if array.dtype != np.object_:
        return array
    flat = [value.decode() for value in array.reshape(-1)]
    return np.array(flat, np.object_).reshape(array.shape)
