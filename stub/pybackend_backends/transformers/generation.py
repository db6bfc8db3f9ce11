"""Text generation as a decoupled model, with the inputs and outputs of Triton's vLLM backend."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
import transformers

from pybackend_backends.transformers.checkpoints import Checkpoint
from pybackend_backends.transformers.sampling import Sampling, SamplingError
from pybackend_backends.transformers.settings import Settings

GENERATING = ("text-generation", "text2text-generation")
"""The tasks that are served by a stream of text."""


class Piece(NamedTuple):
    """A part of an answer.

    Attributes:
        text: the new part of the answer.
        tokens: how many tokens are new.
        finish_reason: ``stop`` or ``length`` in the last piece, else empty.
    """

    text: str
    tokens: int
    finish_reason: str


class Generator:
    """Continues texts, one at a time.

    Attributes:
        prompt_tokens: how many tokens the text has that is being continued.
    """

    def __init__(self, checkpoint: Checkpoint, settings: Settings, device: str) -> None:
        self._tokenizer = checkpoint.tokenizer()
        self._model = checkpoint.model(settings.dtype, device)
        self._device = device
        self._has_encoder = bool(getattr(checkpoint.config, "is_encoder_decoder", False))
        self.prompt_tokens = 0
        self._room = settings.max_length or getattr(checkpoint.config, "max_position_embeddings", None)

    def run(
        self, text: str, sampling: Sampling, send: Optional[Callable[[Piece], None]], is_cancelled: Callable[[], bool]
    ) -> Piece:
        """Generate an answer.

        Args:
            text: the prompt.
            sampling: how to generate.
            send: gets each piece as soon as it is there; None to wait for the whole.
            is_cancelled: asked after each token.

        Returns:
            The last piece: the whole answer without ``send``.

        Raises:
            SamplingError: the prompt and the answer do not fit into the model, or a stream uses several beams.
        """
        encoded = self._tokenizer(text, return_tensors="pt", return_token_type_ids=False).to(self._device)
        self.prompt_tokens = prompt_tokens = int(encoded["input_ids"].shape[1])
        self._check(prompt_tokens, sampling, streams=send is not None)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        streamer = _Streamer(self._tokenizer, send) if send is not None else None
        options: Dict[str, Any] = dict(sampling.options)
        if sampling.stop:
            options.update(stop_strings=sampling.stop, tokenizer=self._tokenizer)
        generated = self._model.generate(
            **encoded,
            **options,
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.min_tokens or None,
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=streamer,
            stopping_criteria=transformers.StoppingCriteriaList([_Cancelled(is_cancelled)]),
        )[0]
        answer = generated[1:] if self._has_encoder else generated[prompt_tokens:]
        reason = "length" if len(answer) >= sampling.max_tokens and not self._ended(answer) else "stop"
        if streamer is not None:
            return Piece(*streamer.rest(), reason)
        return Piece(self._tokenizer.decode(answer, skip_special_tokens=True), len(answer), reason)

    def _ended(self, answer: Any) -> bool:
        ends = self._model.generation_config.eos_token_id
        known: List[int] = ends if isinstance(ends, list) else [ends]
        return len(answer) > 0 and int(answer[-1]) in known

    def _check(self, prompt_tokens: int, sampling: Sampling, streams: bool) -> None:
        if prompt_tokens == 0:
            raise SamplingError("'text_input' has no tokens: it must not be empty.")
        if streams and sampling.options.get("num_beams", 1) > 1:
            raise SamplingError("a stream cannot use num_beams: a beam may replace what was sent.")
        taken = 0 if self._has_encoder else prompt_tokens
        if self._room is not None and taken + sampling.max_tokens > self._room:
            raise SamplingError(
                f"the prompt of {prompt_tokens} tokens and max_tokens {sampling.max_tokens} do not fit into the model's "
                f"{self._room} positions: shorten one of them."
            )


class _Streamer(transformers.TextStreamer):  # type: ignore[misc]  # mypy does not read the library
    """Sends text as soon as whole words are there; ``generate`` calls it for every token."""

    def __init__(self, tokenizer: Any, send: Callable[[Piece], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._send = send
        self._unsent_tokens = -1  # the prompt comes first, in one call
        self._last = ""

    def put(self, value: Any) -> None:
        self._unsent_tokens += 1
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if stream_end:
            self._last = text
        elif text:
            self._send(Piece(text, self._unsent_tokens, ""))
            self._unsent_tokens = 0

    def rest(self) -> Tuple[str, int]:
        """The rest that was not sent: text, and the number of tokens."""
        return self._last, self._unsent_tokens


class _Cancelled(transformers.StoppingCriteria):  # type: ignore[misc]  # likewise
    """Ends a generation that nobody waits for."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        return torch.full((len(input_ids),), self._is_cancelled(), device=input_ids.device, dtype=torch.bool)
