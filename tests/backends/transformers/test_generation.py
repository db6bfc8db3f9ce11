"""Generated texts beside the library's own ``generate``, without a server: alone, together, joining and leaving."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from pybackend_backends.text_requests import RequestError  # noqa: E402
from pybackend_backends.transformers.batch import AnswerReceiver, Piece  # noqa: E402
from pybackend_backends.transformers.checkpoints import Checkpoint, TaskSettings  # noqa: E402
from pybackend_backends.transformers.generation import Generator  # noqa: E402
from pybackend_backends.transformers.sampling import read_sampling  # noqa: E402
from tests.backends.transformers import tiny_models  # noqa: E402

pytestmark = [pytest.mark.thorough, pytest.mark.torch, pytest.mark.timeout(300)]

DEADLINE_S = 120
PROMPTS = ["hello world", "this", "food is not bad . a b c", "good", "a b", "d ."]


class Collected(AnswerReceiver):
    """Keeps what it gets. It can take no piece before ``slow`` is cleared, and is cancelled after some pieces."""

    def __init__(self, *, streams=False, slow=False, cancelled_after=None):
        self.streams = streams
        self.slow = slow
        self.pieces: list[Piece] = []
        self.error = None
        self.ended = threading.Event()
        self._cancelled_after = cancelled_after

    def offer(self, piece):
        if self.slow:
            return False
        self.pieces.append(piece)
        return True

    def end(self, piece):
        self.pieces.append(piece)
        self.ended.set()

    def fail(self, error):
        self.error = error
        self.ended.set()

    def cancel(self):
        self.ended.set()

    def is_cancelled(self):
        return self._cancelled_after is not None and len(self.pieces) >= self._cancelled_after

    def whole(self):
        """Text, number of tokens, reason."""
        assert self.ended.wait(DEADLINE_S)
        assert self.error is None, self.error
        return (
            "".join(piece.text for piece in self.pieces),
            sum(piece.tokens for piece in self.pieces),
            self.pieces[-1][2],
        )


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    tiny_models.make_gpt(made / "story")
    tiny_models.make_llama(made / "llama")
    return made


@pytest.fixture(scope="module", params=["story", "llama"])
def generator(directory, request):
    made = Generator(Checkpoint(str(directory / request.param)), TaskSettings(), "cpu")
    made.directory = directory / request.param
    yield made
    made.end()


@pytest.fixture(scope="module")
def library(generator):
    """The library's own answer, as :meth:`Collected.whole` has it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(generator.directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(generator.directory)

    def generate(text, seed=None, **options):
        if seed is not None:
            torch.manual_seed(seed)
        prompt = tokenizer(text, return_tensors="pt")["input_ids"]
        mask = torch.ones_like(prompt)
        tokens = model.generate(prompt, attention_mask=mask, pad_token_id=0, **options)[0, prompt.shape[1] :]
        return tokenizer.decode(tokens, skip_special_tokens=True), len(tokens)

    return generate


def begin(generator, text, receiver=None, **sampling):
    receiver = receiver or Collected()
    generator.submit(generator.tokens_of(text), read_sampling(sampling, 16), receiver)
    return receiver


def test_texts_that_are_generated_together_are_those_of_the_library(generator, library):
    most = [20, 3, 12, 1, 30, 7]
    receivers = [
        begin(generator, text, Collected(streams=bool(place % 2)), max_tokens=count, temperature=0)
        for place, (text, count) in enumerate(zip(PROMPTS, most, strict=True))
    ]
    for text, count, receiver in zip(PROMPTS, most, receivers, strict=True):
        assert receiver.whole()[:2] == library(text, do_sample=False, max_new_tokens=count), text
    later = [begin(generator, text, max_tokens=5, min_tokens=5) for text in PROMPTS]
    for text, receiver in zip(PROMPTS, later, strict=True):
        assert receiver.whole() == (*library(text, do_sample=False, max_new_tokens=5, min_new_tokens=5), "length")


def test_settings_that_change_scores_are_the_librarys(generator, library):
    cases = [
        ({"repetition_penalty": 1.5, "min_tokens": 9}, {"repetition_penalty": 1.5, "min_new_tokens": 9}),
        ({"temperature": 3.0, "top_k": 7, "top_p": 0.9, "seed": 5, "min_tokens": 9},
         {"temperature": 3.0, "top_k": 7, "top_p": 0.9, "do_sample": True, "min_new_tokens": 9, "seed": 5}),
        ({"temperature": 4.0, "min_p": 0.01, "seed": 6}, {"temperature": 4.0, "min_p": 0.01, "do_sample": True, "seed": 6}),
        ({"num_beams": 3}, {"num_beams": 3}),
    ]  # fmt: skip
    receivers = [begin(generator, "hello world", max_tokens=12, **ours) for ours, _ in cases]
    for receiver, (_, theirs) in zip(receivers, cases, strict=True):
        assert receiver.whole()[:2] == library("hello world", max_new_tokens=12, **theirs), theirs


def test_a_text_ends_with_the_first_of_its_stops(generator, library):
    whole = library("hello world", do_sample=False, max_new_tokens=12, min_new_tokens=12)[0].split()
    stop = whole[5]
    kept = whole[: whole.index(stop) + 1]
    settings = {"max_tokens": 12, "min_tokens": 12, "temperature": 0, "stop": [stop, "no such word"]}
    for receiver in (Collected(), Collected(streams=True)):
        assert begin(generator, "hello world", receiver, **settings).whole()[::2] == (" ".join(kept), "stop")
    beams = begin(generator, "hello world", **{**settings, "stop": list(tiny_models.WORDS)}, num_beams=2).whole()
    assert (beams[1] < 12, beams[2]) == (True, "stop")


def test_pieces_come_while_the_text_grows_and_are_joined_for_slow_receivers(generator):
    settings = {"max_tokens": 8, "min_tokens": 8, "temperature": 0}
    quick = begin(generator, "hello world", Collected(streams=True), **settings)
    slow = begin(generator, "hello world", Collected(streams=True, slow=True), **settings)
    text, tokens, reason = quick.whole()
    assert (len(quick.pieces) > 2, tokens, reason) == (True, 8, "length")
    assert slow.whole() == (text, 8, "length")
    assert len(slow.pieces) == 1


def test_a_cancelled_text_makes_room_and_an_error_concerns_one_text(generator, monkeypatch):
    gone = begin(generator, "hello world", Collected(streams=True, cancelled_after=1), max_tokens=50, min_tokens=50)
    other = begin(generator, "this", max_tokens=40, min_tokens=40)
    assert gone.ended.wait(DEADLINE_S)
    assert 1 <= sum(piece.tokens for piece in gone.pieces) < 50

    def broken(piece):
        raise OSError("gone")

    failing = Collected(streams=True)
    monkeypatch.setattr(failing, "offer", broken)
    begin(generator, "a b c", failing, max_tokens=20, min_tokens=20)
    assert failing.ended.wait(DEADLINE_S)
    assert str(failing.error) == "gone"
    assert other.whole()[1] == 40


def test_a_text_that_cannot_be_continued_is_refused(generator):
    with pytest.raises(RequestError, match="1 tokens and max_tokens 64 do not fit into the model's 64 positions"):
        begin(generator, "hello", max_tokens=64)
    with pytest.raises(RequestError, match="'text_input' has no tokens"):
        begin(generator, "")
    with pytest.raises(RequestError, match="a stream cannot use num_beams"):
        begin(generator, "hello", Collected(streams=True), num_beams=2)
