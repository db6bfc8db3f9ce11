"""The engine."""

import asyncio
import os
import sys
from types import SimpleNamespace

from vllm.exceptions import VLLMValidationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

WORDS = [" one", " two", " three", " four", " five", " six", " seven", " eight"]
_TOKEN_S = 0.005


def say(text):
    sys.stderr.write(f"[stand-in] {text}\n")
    sys.stderr.flush()


def _text(prompt):
    return prompt["prompt"] if "prompt" in prompt else "".join(map(chr, prompt["prompt_token_ids"]))


class AsyncLLM:
    """Says words."""

    def __init__(self, engine_args, stat_loggers):
        self._args = engine_args
        config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=engine_args.max_model_len or 2048))
        self._loggers = [factory(config, 0) for factory in stat_loggers or ()]
        for logger in self._loggers:
            logger.log_engine_initialized()
        self._dead = False
        self._running = 0

    @classmethod
    def from_engine_args(cls, engine_args, start_engine_loop=True, usage_context=None, stat_loggers=None):
        if os.path.basename(engine_args.model) == "broken":
            raise RuntimeError("Engine core initialization failed.")
        say(f"engine of {engine_args.model}, GPU {os.environ.get('CUDA_VISIBLE_DEVICES')}")
        return cls(engine_args, stat_loggers)

    @property
    def errored(self) -> bool:
        return self._dead

    def get_tokenizer(self):
        class Tokenizer:
            """Its tokens are characters. Its template writes down the roles, and the names of tools."""

            def get_chat_template(self, chat_template=None, tools=None):
                return chat_template or "roles and tools"

            def apply_chat_template(self, messages, chat_template=None, tools=None, tokenize=True, **variables):
                if any(message["role"] == "nobody" for message in messages):
                    raise ValueError("nobody has no role")
                lines = [f"tool {tool['function']['name']}" for tool in tools or ()]
                lines += [f"{message['role']}: {message['content']}" for message in messages]
                return "\n".join([*lines, *(f"{name}={value}" for name, value in variables.items())])

            def __call__(self, text, add_special_tokens=True):
                return {"input_ids": [ord(character) for character in text]}

        return Tokenizer()

    async def generate(self, prompt, sampling_params, request_id, *, lora_request=None, priority=0):
        if self._dead:
            raise EngineDeadError
        text = _text(prompt)
        if not text:
            raise VLLMValidationError("The decoder prompt cannot be empty")
        say(f"{request_id} begins")
        self._report(prompt=len(text.split()), step=IterationStats(), change=1)
        try:
            async for output in self._say(prompt, sampling_params, request_id, lora_request):
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            await self.abort(request_id)
            raise
        except EngineDeadError:
            raise
        except Exception as error:
            raise EngineGenerateError from error
        finally:
            self._report(step=IterationStats(), change=-1)

    async def _say(self, prompt, sampling_params, request_id, lora_request):
        text = _text(prompt)
        if "fail" in text:
            raise ArithmeticError("the numbers went wrong")
        ids = list(range(len(text.split())))
        if "die" in text:
            self._dead = True
        words = WORDS
        if lora_request is not None:
            words = [f" {lora_request.lora_name}/{os.path.basename(lora_request.lora_path)}"]
        images = prompt.get("multi_modal_data", {}).get("image", ())
        if images:
            words = ["".join(f" {image.width}x{image.height}{image.mode}" for image in images)]
        grammar = sampling_params.structured_outputs
        if grammar is not None:
            words = [f" {grammar.choice[0]}" if grammar.choice else f" {grammar.json or grammar.json_object}"]
        if "repeat" in text:
            words = [text]
        said = [[] for _ in range(sampling_params.n)]
        streams = sampling_params.output_kind is RequestOutputKind.DELTA
        for position in range(sampling_params.max_tokens):
            if self._dead:
                raise EngineDeadError
            await asyncio.sleep(_TOKEN_S if "slowly" in text else 0)
            last = position + 1 == sampling_params.max_tokens
            step = IterationStats()
            step.num_generation_tokens = sampling_params.n
            (step.inter_token_latencies_iter if position else step.time_to_first_tokens_iter).append(0.02)
            if last:
                step.n_params_iter.append(sampling_params.n)
                step.finished_requests.append(FinishedRequestStats(0.4, len(ids), position + 1, 0.1, 0.1, 0.3, 0.2))
            self._report(step=step)
            for tokens in said:
                tokens.append(position % len(words))
            if streams or last:
                begin = position if streams else 0
                pieces = [
                    self._piece(index, tokens, begin, words, sampling_params, last) for index, tokens in enumerate(said)
                ]
                yield RequestOutput(request_id, text, ids, None, pieces, last)

    @staticmethod
    def _piece(index, tokens, begin, words, sampling_params, last):
        new = tokens[begin:]
        logprobs = cumulative = None
        if sampling_params.logprobs is not None:
            logprobs = [{token: Logprob(-0.5, 1, words[token])} for token in new]
            cumulative = -0.5 * len(tokens)
        text = "".join(words[token] for token in new)
        return CompletionOutput(index, text, new, cumulative, logprobs, "length" if last else None)

    def _report(self, prompt=0, step=None, change=0):
        self._running += change
        step.num_prompt_tokens = prompt
        for logger in self._loggers:
            logger.record(SchedulerStats(self._running, 0, 0.25 if self._running else 0.0), step)

    async def abort(self, request_id, internal=False):
        say(f"aborted {request_id}")

    def shutdown(self, timeout=None):
        say("engine has ended")
