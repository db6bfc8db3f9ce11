"""Text generation: many texts at a time where the model allows it, and one after another otherwise.

Each of the two kinds has a thread. ``execute`` only hands texts over.
"""

import queue
import threading
from typing import Any, List, NamedTuple, Optional

import numpy as np
import torch
import transformers

from pybackend_backends.text_requests import (
    FINAL,
    RequestError,
    chat_of,
    chat_tokens,
    excludes_prompt,
    refuse,
    settings_of,
    strings,
    text_of,
    truth_of,
)
from pybackend_backends.transformers.batch import (
    AnswerReceiver,
    Piece,
    PromptlessPieces,
    Rules,
    TextBatch,
    TextRow,
    can_batch,
    has_stop,
    rules_of,
)
from pybackend_backends.transformers.checkpoints import Checkpoint, TaskSettings
from pybackend_backends.transformers.sampling import Sampling, is_setting, read_sampling
from pybackend_sdk.backend import offer
from pybackend_sdk.error import TritonError
from pybackend_sdk.request import InferenceRequest
from pybackend_sdk.response import InferenceResponse
from pybackend_sdk.tensor import Tensor

GENERATING = ("text-generation", "text2text-generation")
"""The tasks that are served by a stream of text."""


class Text(NamedTuple):
    """A text to continue; ``rules`` is None if only the library's own ``generate`` knows them."""

    tokens: List[int]
    sampling: Sampling
    rules: Optional[Rules]
    receiver: AnswerReceiver


class Generator:
    """Continues texts."""

    def __init__(
        self, checkpoint: Checkpoint, settings: TaskSettings, device: str, chat_template: Optional[str] = None
    ) -> None:
        self.tokenizer = checkpoint.tokenizer()
        self.chat_template = chat_template
        self._model = checkpoint.model(settings.dtype, device)
        self._room = settings.max_length or getattr(checkpoint.config, "max_position_embeddings", None)
        self._has_encoder = bool(getattr(checkpoint.config, "is_encoder_decoder", False))
        with torch.inference_mode():
            self._batches = can_batch(self._model)
        self._places = threading.BoundedSemaphore(settings.max_texts)
        self._together: queue.SimpleQueue[Optional[Text]] = queue.SimpleQueue()
        self._alone: queue.SimpleQueue[Optional[Text]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._continue_together, "texts"), (self._continue_alone, "one-text"))
        ]
        for thread in self._threads:
            thread.start()

    def tokens_of(self, text: str) -> List[int]:
        tokens: List[int] = self.tokenizer(text)["input_ids"]
        if not tokens:
            raise RequestError("'text_input' has no tokens: it must not be empty.")
        return tokens

    def submit(self, tokens: List[int], sampling: Sampling, receiver: AnswerReceiver) -> None:
        """Begin a text, whose receiver gets the answer in another thread.

        Waits while the instance has as many as it may.
        """
        self._check(len(tokens), sampling, receiver.streams)
        rules = None
        if self._batches:
            rules = rules_of(self._model.generation_config, sampling, len(tokens), str(self._model.device))
        self._places.acquire()
        (self._alone if rules is None else self._together).put(Text(tokens, sampling, rules, receiver))

    def end(self) -> None:
        """End the threads. All texts have their answers."""
        self._together.put(None)
        self._alone.put(None)
        for thread in self._threads:
            thread.join()

    def _check(self, prompt_tokens: int, sampling: Sampling, streams: bool) -> None:
        if streams and sampling.options.get("num_beams", 1) > 1:
            raise RequestError("a stream cannot use num_beams: a beam may replace what was sent.")
        taken = 0 if self._has_encoder else prompt_tokens
        if self._room is not None and taken + sampling.max_tokens > self._room:
            raise RequestError(
                f"the prompt of {prompt_tokens} tokens and max_tokens {sampling.max_tokens} do not fit into the model's "
                f"{self._room} positions: shorten one of them."
            )

    # The thread of texts that are continued together.

    def _continue_together(self) -> None:
        batch = TextBatch(self._model)
        with torch.inference_mode():
            while self._join(batch):
                before = list(batch.rows)
                try:
                    batch.step()
                except Exception as error:  # noqa: BLE001  such as a lack of memory: it concerns all of them
                    for row in batch.clear():
                        row.receiver.fail(error)
                self._release(len(before) - len(batch.rows))

    def _join(self, batch: TextBatch) -> bool:
        """Let new texts join; wait for one if there is none. Returns False at the end."""
        while True:
            try:
                text = self._together.get(block=not batch.rows)
            except queue.Empty:
                return True
            if text is None:
                return False
            if not self._begin(batch, text):
                self._release(1)

    def _begin(self, batch: TextBatch, text: Text) -> bool:
        """Read a prompt; returns whether the text is now one of the batch."""
        assert text.rules is not None
        if text.receiver.is_cancelled():
            text.receiver.cancel()
            return False
        count = len(batch.rows)
        try:
            batch.join(
                TextRow(
                    list(text.tokens), text.sampling, text.rules, text.receiver, self.tokenizer, str(self._model.device)
                )
            )
        except Exception as error:  # noqa: BLE001  the library raises anything
            text.receiver.fail(error)
        return len(batch.rows) > count

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._places.release()

    # The thread of texts that are continued one after another.

    def _continue_alone(self) -> None:
        with torch.inference_mode():
            for text in iter(self._alone.get, None):
                try:
                    self._generate(text)
                except Exception as error:  # noqa: BLE001  the library raises anything
                    text.receiver.fail(error)
                self._release(1)

    def _generate(self, text: Text) -> None:
        sampling, receiver = text.sampling, text.receiver
        ids = torch.tensor([text.tokens], device=self._model.device)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        pieces = PromptlessPieces(self.tokenizer, receiver) if receiver.streams else None
        generated = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            **sampling.options,
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens or None,
            pad_token_id=self.tokenizer.pad_token_id,
            streamer=pieces,
            stopping_criteria=transformers.StoppingCriteriaList([_Ended(text, self.tokenizer, self._has_encoder)]),
        )[0]
        answer = generated[1:] if self._has_encoder else generated[len(text.tokens) :]
        reason = "length" if len(answer) >= sampling.max_tokens and not self._ended(answer) else "stop"
        if pieces is not None:
            pieces.finish(reason)
        else:
            receiver.end(Piece(self.tokenizer.decode(answer, skip_special_tokens=True), len(answer), reason))

    def _ended(self, answer: Any) -> bool:
        ends = self._model.generation_config.eos_token_id
        known: List[int] = ends if isinstance(ends, list) else [ends]
        return len(answer) > 0 and int(answer[-1]) in known


class _Ended(transformers.StoppingCriteria):  # type: ignore[misc]  # mypy does not read the library
    """Ends a generation that nobody waits for, or whose answers have a text that ends them."""

    def __init__(self, text: Text, tokenizer: Any, has_encoder: bool) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._before = 1 if has_encoder else len(text.tokens)

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        stops, cancelled = self._text.sampling.stop, self._text.receiver.is_cancelled()
        ended = [cancelled or has_stop(self._tokenizer, ids[self._before :].tolist(), stops) for ids in input_ids]
        return torch.tensor(ended, device=input_ids.device)


def begin_text(request: InferenceRequest, generator: Generator, default_max_tokens: int) -> None:
    """Begin a request, which is answered through its response sender. An error is sent, not raised."""
    try:
        chat, prompt = chat_of(request), text_of(request, "text_input")
        streams = truth_of(request, "stream")
        prefix = "" if excludes_prompt(request, streams) else prompt
        sampling = read_sampling(settings_of(request, is_setting), default_max_tokens)
        if chat is None:
            tokens = generator.tokens_of(prompt)
        else:
            tokens = chat_tokens(generator.tokenizer, chat, generator.chat_template)
        generator.submit(tokens, sampling, TextSender(request, streams, prefix, len(tokens)))
    except RequestError as error:
        refuse(request.get_response_sender(), str(error))
    except Exception as error:  # noqa: BLE001  tokenizers raise anything
        refuse(request.get_response_sender(), f"{type(error).__name__}: {error}", TritonError.INTERNAL)


class TextSender(AnswerReceiver):
    """Sends the text of a request: each piece is a response if it streams, and a whole answer begins with the prefix."""

    def __init__(self, request: InferenceRequest, streams: bool, prefix: str, prompt_tokens: int) -> None:
        self.streams = streams
        self._sender = request.get_response_sender()
        self._prefix = prefix
        self._prompt_tokens = prompt_tokens
        self._finish_reason = truth_of(request, "return_finish_reason")
        self._input_tokens = truth_of(request, "return_num_input_tokens")
        self._output_tokens = truth_of(request, "return_num_output_tokens")

    def offer(self, piece: Piece) -> bool:
        return offer(self._sender, self._response(piece))

    def end(self, piece: Piece) -> None:
        if self.is_cancelled():
            self.cancel()
        else:
            self._sender.send(self._response(piece._replace(text=self._prefix + piece.text)), FINAL)

    def cancel(self) -> None:
        refuse(self._sender, "The request was cancelled while its text was generated.", TritonError.CANCELLED)

    def fail(self, error: Exception) -> None:
        refuse(self._sender, f"{type(error).__name__}: {error}", TritonError.INTERNAL)

    def is_cancelled(self) -> bool:
        return self._sender.is_cancelled()

    def _response(self, piece: Piece) -> InferenceResponse:
        outputs: List[Tensor] = [Tensor("text_output", strings([piece.text]))]
        if self._finish_reason:
            outputs.append(Tensor("finish_reason", strings([piece.finish_reason])))
        if self._input_tokens:
            outputs.append(Tensor("num_input_tokens", np.array([self._prompt_tokens], np.uint32)))
        if self._output_tokens:
            outputs.append(Tensor("num_output_tokens", np.array([piece.tokens], np.uint32)))
        return InferenceResponse(outputs)
