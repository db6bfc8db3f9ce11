"""A stand-in for vLLM in tests: the names and signatures that the backend uses, around an engine that needs no GPU.

Its engine "knows" eight words and says them in order, one for each token. Prompts steer it: ``die`` ends the engine,
``fail`` raises an unexpected error, ``slowly`` makes a token every few milliseconds.
"""

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

__version__ = "0.33.0+stand.in"

__all__ = ["AsyncEngineArgs", "AsyncLLMEngine", "CompletionOutput", "RequestOutput", "SamplingParams"]
