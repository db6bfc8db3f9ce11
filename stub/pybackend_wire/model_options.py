"""The keys of a model's ``parameters`` that the server itself reads; all other keys belong to the model's code."""

OPTION_NAMES = (
    "EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "INPUT_COPY", "VALIDATE_OUTPUTS",
    "ASYNC_EXECUTE_CONCURRENCY", "EXECUTION_TIME_LIMIT_S", "RESTART_LIMIT", "RESTART_RETRY_S", "CANCEL_CALLS_WITH_REQUEST", "ZYGOTE",
    "PRELOAD", "PROCESS_GROUP", "SANDBOX", "CLIENT_MEMORY", "TRAFFIC_WEIGHTS", "TRAFFIC_SHADOW", "MLFLOW_COLUMNS",
    "PROCESS_MEMORY_LIMIT_MB", "RESTART_AFTER_REQUESTS", "RESTART_AFTER_REQUESTS_JITTER", "RESTART_AT_MEMORY_MB",
)  # fmt: skip
"""All of them, except those that begin with :data:`SANDBOX_PREFIX` or :data:`OPENAI_PREFIX`."""

SANDBOX_PREFIX = "SANDBOX"
OPENAI_PREFIX = "OPENAI_"

_UNSERVED = ("TRITON_BATCH_STRATEGY_PATH",)


def is_option(name: str) -> bool:
    """Whether a key is the server's: one that it reads, or warns that it does not support."""
    return name in OPTION_NAMES or name in _UNSERVED or name.startswith((SANDBOX_PREFIX, OPENAI_PREFIX))
