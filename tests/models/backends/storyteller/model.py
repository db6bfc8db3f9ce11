"""A backend for text generation: an event loop of its own in a thread, and a second thread that sends all responses."""

import asyncio
import json
import os
import queue
import threading
import traceback

import numpy as np
import triton_python_backend_utils as pb_utils
from story_engine import Engine

SETTINGS = "model.json"


class TritonPythonModel:
    @classmethod
    def auto_complete_config(cls, auto_complete_model_config):
        inputs = [
            {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "stream", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
            {"name": "sampling_parameters", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
            {"name": "exclude_input_in_output", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
            {"name": "return_finish_reason", "data_type": "TYPE_BOOL", "dims": [1], "optional": True},
        ]
        outputs = [
            {"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]},
            {"name": "finish_reason", "data_type": "TYPE_STRING", "dims": [-1]},
        ]
        config = auto_complete_model_config.as_dict()
        present = {tensor["name"] for kind in ("input", "output") for tensor in config[kind]}
        for tensor in inputs:
            if tensor["name"] not in present:
                auto_complete_model_config.add_input(tensor)
        for tensor in outputs:
            if tensor["name"] not in present:
                auto_complete_model_config.add_output(tensor)
        # Streams need it; whether one is asked for is only known with the request.
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args):
        self.args = args
        self.logger = pb_utils.Logger
        self.model_config = json.loads(args["model_config"])
        assert pb_utils.using_decoupled_model_transaction_policy(self.model_config)
        assert args["model_instance_kind"] == "MODEL", args
        config = pb_utils.get_output_config_by_name(self.model_config, "text_output")
        self.text_dtype = pb_utils.triton_string_to_numpy(config["data_type"])

        path = os.path.join(pb_utils.get_model_dir(), SETTINGS)
        with open(path, encoding="utf-8") as file:
            self.settings = json.load(file)
        self.count_metrics()

        self.responses = queue.Queue()
        self.responder = threading.Thread(target=self.response_loop)
        self.responder.start()

        self.numbers = iter(range(1, 1 << 62))
        self.loop = None
        self.loop_is_up = threading.Event()
        self.loop_thread = threading.Thread(target=self.run_loop)
        self.loop_thread.start()
        self.loop_is_up.wait()
        self.logger.log_info(f"[storyteller] {len(self.settings['words'])} words from {path}")

    def count_metrics(self):
        labels = {"model": self.args["model_name"], "version": self.args["model_version"]}
        self.token_family = pb_utils.MetricFamily(
            name="storyteller:generation_tokens_total",
            description="Number of generation tokens processed.",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.tokens = self.token_family.Metric(labels=labels)
        self.latency_family = pb_utils.MetricFamily(
            name="storyteller:words_per_request",
            description="Histogram of the words per request.",
            kind=pb_utils.MetricFamily.HISTOGRAM,
        )
        self.words = self.latency_family.Metric(labels=labels, buckets=[1, 2, 5, 10])

    # The engine's loop

    def run_loop(self):
        asyncio.run(self.serve())

    async def serve(self):
        self.loop = asyncio.get_running_loop()
        self.end = asyncio.Event()
        self.engine = Engine(self.settings["words"], self.settings["pause_s"])
        self.tasks = set()
        self.loop_is_up.set()
        await self.end.wait()
        while self.tasks:
            self.logger.log_info(f"[storyteller] awaiting {len(self.tasks)} requests")
            await asyncio.wait(self.tasks)

    def response_loop(self):
        while True:
            item = self.responses.get()
            if item is None:
                return
            sender, response, flags, state = item
            if sender.is_cancelled():
                state["cancelled"] = True
            try:
                sender.send(response, flags)
            except pb_utils.TritonModelException as refused:
                self.logger.log_error(f"[storyteller] cannot send: {refused}")

    # Requests

    def execute(self, requests):
        for request in requests:
            try:
                asyncio.run_coroutine_threadsafe(self.create(request, self.read(request)), self.loop).result()
            except Exception as error:
                self.logger.log_error(f"[storyteller] refused: {traceback.format_exc()}")
                refused = pb_utils.TritonError(
                    f"Error processing the request: {error}", pb_utils.TritonError.INVALID_ARG
                )
                request.get_response_sender().send(
                    pb_utils.InferenceResponse(error=refused), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )

    def read(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
        sampling = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
        # Clients may send them as an input, or as parameters of the request.
        parameters = json.loads(sampling.as_numpy()[0] if sampling is not None else request.parameters())
        limit = int(parameters.get("max_tokens", 16))
        if limit < 1:
            raise ValueError(f"max_tokens must be at least 1, got {limit}.")
        return {
            "prompt": prompt.decode("utf-8"),
            "limit": limit,
            "stream": self.flag(request, "stream", False),
            "without_prompt": self.flag(request, "exclude_input_in_output", True),
            "reason": self.flag(request, "return_finish_reason", False),
        }

    @staticmethod
    def flag(request, name, default):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return default if tensor is None else bool(tensor.as_numpy()[0])

    async def create(self, request, options):
        """Begins a request; it must not wait, other requests are to come."""
        task = asyncio.get_running_loop().create_task(self.generate(request.get_response_sender(), options))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def generate(self, sender, options):
        number = next(self.numbers)
        state = {"cancelled": False}
        sent, count = len(options["prompt"]) if options["without_prompt"] else 0, 0
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            last = None
            async for text, finished in self.engine.generate(options["prompt"], options["limit"], number):
                count += 1
                self.tokens.increment(1)
                if state["cancelled"] or sender.is_cancelled():
                    self.logger.log_info(f"[storyteller] cancelling request {number}")
                    await self.engine.abort(number)
                    cancelled = pb_utils.TritonError("request was cancelled", pb_utils.TritonError.CANCELLED)
                    self.responses.put((sender, pb_utils.InferenceResponse(error=cancelled), final, state))
                    return
                last = text
                if options["stream"]:
                    self.responses.put((sender, self.response(text[sent:], finished, options), final * finished, state))
                    sent = len(text)
            if not options["stream"]:
                self.responses.put((sender, self.response(last[sent:], True, options), final, state))
        except Exception as error:
            self.logger.log_error(f"[storyteller] failed: {traceback.format_exc()}")
            failed = pb_utils.InferenceResponse(error=pb_utils.TritonError(f"Error generating stream: {error}"))
            self.responses.put((sender, failed, final, state))
        finally:
            self.words.observe(count)

    def response(self, text, finished, options):
        tensors = [pb_utils.Tensor("text_output", np.asarray([text], dtype=self.text_dtype))]
        if options["reason"]:
            tensors.append(
                pb_utils.Tensor("finish_reason", np.asarray([str("stop" if finished else None)], np.object_))
            )
        return pb_utils.InferenceResponse(output_tensors=tensors)

    # The end

    def finalize(self):
        self.logger.log_info("[storyteller] ending")
        self.loop.call_soon_threadsafe(self.end.set)
        self.loop_thread.join()
        self.responses.put(None)
        self.responder.join()
        self.logger.log_info("[storyteller] ended")
