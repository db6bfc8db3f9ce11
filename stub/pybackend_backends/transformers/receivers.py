"""Receives the text of a request, while it is generated."""

from typing import Any, Callable, NamedTuple

import transformers


class Piece(NamedTuple):
    """A new part of an answer, with its number of tokens; the last one has the reason of the end, ``stop`` or ``length``."""

    text: str
    tokens: int
    finish_reason: str


class Receiver:
    """Receives the pieces of one answer; the base of those that send them. Only those that stream want pieces before the last."""

    streams = False

    def offer(self, piece: Piece) -> bool:
        """Take a piece that is not the last one; False if the next one should bring it along."""
        raise NotImplementedError

    def end(self, piece: Piece) -> None:
        """Take the last piece."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """There is no answer."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Nobody waits for the rest of the answer."""
        raise NotImplementedError

    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        raise NotImplementedError


class TextPieces(transformers.TextStreamer):  # type: ignore[misc]  # mypy does not read the library
    """Turns tokens into text, and offers it to a receiver as soon as whole words are there.

    The text that a slow receiver does not take is joined with the text that follows. It is bounded by the answer.
    """

    def __init__(self, tokenizer: Any, receiver: Receiver) -> None:
        super().__init__(tokenizer, skip_prompt=False, skip_special_tokens=True)
        self._receiver = receiver
        self._text = ""
        self._tokens = 0

    def put(self, value: Any) -> None:
        """Take tokens: (1) or (1, tokens)."""
        self._tokens += int(value.numel())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Take text that no later token changes."""
        self._text += text
        if self._text and not stream_end and self._receiver.offer(Piece(self._text, self._tokens, "")):
            self._text, self._tokens = "", 0

    def finish(self, reason: str) -> None:
        """Send all that was not sent, as the last piece."""
        super().end()
        self._receiver.end(Piece(self._text, self._tokens, reason))


class PromptlessPieces(TextPieces):
    """The same for the library's ``generate``, which begins with the prompt, in one call, and ends by itself."""

    def __init__(self, tokenizer: Any, receiver: Receiver) -> None:
        super().__init__(tokenizer, receiver)
        self._sees: Callable[[Any], None] = self._skip

    def put(self, value: Any) -> None:
        self._sees(value)

    def _skip(self, _: Any) -> None:
        self._sees = super().put

    def end(self) -> None:
        """Nothing: the reason of the end is not known yet."""
