import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Loads the model for a unit when it is first asked for, and keeps one of them loaded at a time."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.models = {unit: f"to_{unit}" for unit in config["parameters"]["units"]["string_value"].split()}
        self.loaded = None

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        unit = pb_utils.get_input_tensor_by_name(request, "UNIT").as_numpy()[0].decode()
        if unit not in self.models:
            known = ", ".join(self.models)
            error = pb_utils.TritonError(f"unknown unit '{unit}', known are {known}", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        model = self.models[unit]
        try:
            self.make_room_for(model)
        except pb_utils.TritonModelException as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), pb_utils.TritonError.UNAVAILABLE))
        celsius = pb_utils.get_input_tensor_by_name(request, "CELSIUS")
        response = pb_utils.InferenceRequest(
            model_name=model, inputs=[celsius], requested_output_names=["CONVERTED"]
        ).exec()
        if response.has_error():
            return pb_utils.InferenceResponse(error=response.error())
        return pb_utils.InferenceResponse(response.output_tensors())

    def make_room_for(self, model):
        if model == self.loaded and pb_utils.is_model_ready(model):
            return
        pb_utils.load_model(model)  # returns when the model is ready
        if self.loaded not in {None, model}:
            pb_utils.unload_model(self.loaded)  # returns at once: the model ends when its requests are answered
        self.loaded = model
