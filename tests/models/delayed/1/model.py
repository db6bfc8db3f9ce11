"""Sends the elements of IN one by one from a thread, DELAY milliseconds apart; `execute` itself returns after WAIT."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.model_config = model_config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(model_config):
            raise pb_utils.TritonModelException(f"'{args['model_name']}' can only be served as a decoupled model")
        self.out_dtype = self.dtype_of("OUT")
        self.index_dtype = self.dtype_of("IDX")
        self.lock = threading.Lock()
        self.under_way = 0

    def dtype_of(self, name):
        config = pb_utils.get_output_config_by_name(self.model_config, name)
        return pb_utils.triton_string_to_numpy(config["data_type"])

    def execute(self, requests):
        for request in requests:
            self.start(request)

    def start(self, request):
        numbers, delays, wait = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "DELAY", "WAIT")
        )
        if numbers.shape != delays.shape:
            raise pb_utils.TritonModelException(
                f"expected IN and DELAY of one shape, got {numbers.shape}, {delays.shape}"
            )
        thread = threading.Thread(target=self.respond, args=(request.get_response_sender(), numbers, delays))
        thread.daemon = True
        with self.lock:
            self.under_way += 1
        thread.start()
        time.sleep(wait[0] / 1000)

    def respond(self, sender, numbers, delays):
        for index, delay in enumerate(delays):
            time.sleep(delay / 1000)
            outputs = [
                pb_utils.Tensor("IDX", np.array([index], self.index_dtype)),
                pb_utils.Tensor("OUT", np.array([numbers[index]], self.out_dtype)),
            ]
            sender.send(pb_utils.InferenceResponse(output_tensors=outputs))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.lock:
            self.under_way -= 1

    def finalize(self):
        pb_utils.Logger.log_info("waiting for the threads")
        rounds = 0
        while rounds < 500:
            with self.lock:
                if not self.under_way:
                    break
            rounds += 1
            time.sleep(0.01)
        pb_utils.Logger.log_info(f"delayed ends with {self.under_way} threads under way")
