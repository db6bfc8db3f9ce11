"""Counts the words of a text, and tells on the server's metrics page what it has counted."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        """Registers everything once. Families are kept beside their metrics: a metric without its family is void."""
        labels = {"model": args["model_name"], "version": args["model_version"]}

        self.texts = pb_utils.MetricFamily(
            name="word_count_texts_total",
            description="Texts that were read, by what was found in them",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self.full_texts = self.texts.Metric(labels={**labels, "found": "words"})
        self.empty_texts = self.texts.Metric(labels={**labels, "found": "nothing"})

        self.longest = pb_utils.MetricFamily(
            name="word_count_longest_text_words",
            description="Words of the longest text that an instance has read",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        # A label of its own for each instance: else they would overwrite each other's value.
        self.longest_here = self.longest.Metric(labels={**labels, "instance": args["model_instance_name"]})
        self.most_words = 0

        self.sizes = pb_utils.MetricFamily(
            name="word_count_text_words",
            description="Words per text",
            kind=pb_utils.MetricFamily.HISTOGRAM,
        )
        self.size = self.sizes.Metric(labels=labels, buckets=[1, 10, 100, 1000])

    def execute(self, requests):
        return [self.count(request) for request in requests]

    def count(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().item().decode("utf-8", "replace")
        words = len(text.split())

        (self.full_texts if words else self.empty_texts).increment(1)
        self.size.observe(words)
        if words > self.most_words:
            self.most_words = words
            self.longest_here.set(words)

        return pb_utils.InferenceResponse([pb_utils.Tensor("WORDS", np.array([words], dtype=np.int32))])

    def finalize(self):
        read = self.full_texts.value() + self.empty_texts.value()  # by all instances
        pb_utils.Logger.log_info(f"word_count: {read:.0f} texts were read")
