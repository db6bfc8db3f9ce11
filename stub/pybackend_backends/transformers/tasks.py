"""Inputs and outputs of every task, and the work of those that answer once."""

import io
import json
from typing import Any, Callable, Dict, List, Mapping

import numpy as np
import torch

from pybackend_backends.text_requests import TEXT_SIGNATURE, strings
from pybackend_backends.transformers.checkpoints import Checkpoint, TaskSettings, labels_of, length_limit
from pybackend_backends.transformers.generation import GENERATING
from pybackend_sdk.backend import Signature, TensorInfo
from pybackend_sdk.error import TritonModelException


def signature_of(checkpoint: Checkpoint) -> Signature:
    """Inputs and outputs of a checkpoint's task."""
    if checkpoint.task in GENERATING:
        return _GENERATION
    config = checkpoint.config
    if checkpoint.task == "zero-shot-classification":
        return _ZERO_SHOT
    if checkpoint.task == "text-classification":
        return Signature([_row("text"), _row("text_pair", optional=True)], _classes(config))
    if checkpoint.task == "image-classification":
        return Signature([_row("image")], _classes(config))
    if checkpoint.task == "token-classification":
        return Signature([_row("text")], [_row("entities")])
    return Signature([_row("text")], [_row("embedding", "FP32", int(config.hidden_size))])


def _row(name: str, datatype: str = "STRING", size: int = 1, *, optional: bool = False) -> TensorInfo:
    return TensorInfo(name, "TYPE_" + datatype, (-1, size), optional)


def _classes(config: Any) -> List[TensorInfo]:
    return [_row("label"), _row("score", "FP32"), _row("scores", "FP32", len(labels_of(config)))]


_ZERO_SHOT = Signature(
    [
        TensorInfo("text", "TYPE_STRING", (1,)),
        TensorInfo("candidate_labels", "TYPE_STRING", (-1,)),
        TensorInfo("multi_label", "TYPE_BOOL", (1,), optional=True),
    ],
    [TensorInfo("labels", "TYPE_STRING", (-1,)), TensorInfo("scores", "TYPE_FP32", (-1,))],
    most_rows=0,
)

_NOT_KNOWN = frozenset({"image", "return_cumulative_logprob", "return_logprobs", "cumulative_logprob", "logprobs"})

_GENERATION = Signature(
    [tensor for tensor in TEXT_SIGNATURE.inputs if tensor.name not in _NOT_KNOWN],
    [tensor for tensor in TEXT_SIGNATURE.outputs if tensor.name not in _NOT_KNOWN],
    most_rows=0,
)
"""As of Triton's vLLM backend, without images and log probabilities."""


class TextClassification:
    """Labels of texts, or of pairs of texts."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        self._model = checkpoint.model(settings.dtype, device)
        self._texts = _Texts(checkpoint, settings, device)
        self._labels = labels_of(checkpoint.config)
        config = checkpoint.config
        # Several labels can apply: their scores do not add up to 1.
        self._independent = config.problem_type == "multi_label_classification" or config.num_labels == 1

    def run(self, inputs: Dict[str, List[Any]]) -> Dict[str, np.ndarray]:
        encoded = self._texts.encode(inputs["text"], inputs.get("text_pair"))
        return _classified(self._model(**encoded).logits, self._labels, self._independent)


class ImageClassification:
    """Labels of encoded images: JPEG, PNG and others that Pillow reads."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        self._model = checkpoint.model(settings.dtype, device)
        self._processor = checkpoint.image_processor()
        self._labels = labels_of(checkpoint.config)

    def run(self, inputs: Dict[str, List[Any]]) -> Dict[str, np.ndarray]:
        images = [_decoded(content) for content in inputs["image"]]
        pixels = self._processor(images, return_tensors="pt")["pixel_values"]
        logits = self._model(pixel_values=pixels.to(self._model.device, self._model.dtype)).logits
        return _classified(logits, self._labels, independent=False)


def _decoded(content: bytes) -> Any:
    from PIL import Image

    try:
        return Image.open(io.BytesIO(content)).convert("RGB")
    except Exception as error:  # noqa: BLE001  Pillow raises many types for a bad image
        raise TritonModelException(f"'image' must be an encoded image such as JPEG or PNG: {error}.") from None


class FeatureExtraction:
    """Embeddings of texts: the hidden states of the tokens, pooled."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        self._model = checkpoint.model(settings.dtype, device)
        self._texts = _Texts(checkpoint, settings, device)
        self._pooling = settings.pooling
        self._normalize = settings.normalize

    def run(self, inputs: Dict[str, List[Any]]) -> Dict[str, np.ndarray]:
        encoded = self._texts.encode(inputs["text"])
        states = self._model(**encoded).last_hidden_state
        pooled = pool(states, encoded["attention_mask"], self._pooling).float()
        if self._normalize:
            pooled = torch.nn.functional.normalize(pooled, dim=-1)
        return {"embedding": pooled.cpu().numpy()}


def pool(states: Any, mask: Any, pooling: str) -> Any:
    """One vector for each text, from states (texts, tokens, size) and a mask (texts, tokens) that is 0 for padding."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        places = torch.arange(mask.shape[1], device=mask.device) * mask
        return states[torch.arange(len(states), device=states.device), places.argmax(dim=1)]
    kept = mask.unsqueeze(-1).bool()
    if pooling == "max":
        return states.masked_fill(~kept, float("-inf")).amax(dim=1)
    return (states * kept).sum(dim=1) / kept.sum(dim=1)


class TokenClassification:
    """Entities in texts: a JSON list for each text."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        from transformers import TokenClassificationPipeline

        model = checkpoint.model(settings.dtype, device)
        self._find = TokenClassificationPipeline(
            model=model, tokenizer=checkpoint.tokenizer(), aggregation_strategy=settings.aggregation
        )

    def run(self, inputs: Dict[str, List[Any]]) -> Dict[str, np.ndarray]:
        found = self._find(inputs["text"], batch_size=len(inputs["text"]))
        texts = [json.dumps(entities, default=float, ensure_ascii=False) for entities in found]
        return {"entities": strings(texts)[:, np.newaxis]}


class ZeroShotClassification:
    """Labels that each request brings, by a model that was trained on entailment."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        from transformers import ZeroShotClassificationPipeline

        model = checkpoint.model(settings.dtype, device)
        self._classify = ZeroShotClassificationPipeline(model=model, tokenizer=checkpoint.tokenizer())
        self._hypothesis = settings.hypothesis

    def run(self, inputs: Dict[str, List[Any]]) -> Dict[str, np.ndarray]:
        """Answer one text; labels and scores from the best to the worst."""
        labels = inputs["candidate_labels"]
        if not labels:
            raise TritonModelException("'candidate_labels' must have at least one label.")
        answer = self._classify(
            inputs["text"][0],
            labels,
            multi_label=bool(inputs.get("multi_label", [False])[0]),
            hypothesis_template=self._hypothesis,
        )
        return {"labels": strings(answer["labels"]), "scores": np.array(answer["scores"], np.float32)}


WORKERS: Mapping[str, Callable[[Checkpoint, TaskSettings, str], Any]] = {
    "text-classification": TextClassification,
    "image-classification": ImageClassification,
    "feature-extraction": FeatureExtraction,
    "token-classification": TokenClassification,
    "zero-shot-classification": ZeroShotClassification,
}
"""The class that does each task: its ``run`` computes outputs from inputs, both by name."""


class _Texts:
    """Texts as padded batches of tokens on the model's device."""

    def __init__(self, checkpoint: Checkpoint, settings: TaskSettings, device: str) -> None:
        self._tokenizer = checkpoint.tokenizer()
        self._device = device
        self._max_length = length_limit(self._tokenizer, checkpoint.config, settings.max_length)

    def encode(self, texts: List[str], pairs: Any = None) -> Any:
        encoded = self._tokenizer(
            texts, pairs, padding=True, truncation=True, max_length=self._max_length, return_tensors="pt"
        )
        return encoded.to(self._device)


def _classified(logits: Any, labels: Dict[int, str], independent: bool) -> Dict[str, np.ndarray]:
    logits = logits.float()
    scores = (logits.sigmoid() if independent else logits.softmax(dim=-1)).cpu().numpy()
    best = scores.argmax(axis=1)
    return {
        "label": strings([labels[int(number)] for number in best])[:, np.newaxis],
        "score": np.take_along_axis(scores, best[:, np.newaxis], axis=1),
        "scores": scores,
    }
