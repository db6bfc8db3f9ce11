"""Recognises that a framework found no memory, and says what gives a model's process more.

Frameworks report it in their own words, as errors of many types.
"""

import resource

_WORDS = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "oom when allocating",
    "can't allocate memory",
    "cannot allocate memory",
)
_OF_GPUS = ("cuda", "hip error", "gpu")
_MB = 1 << 20


def memory_advice(error: BaseException) -> str:
    """A sentence for an error that says that the process has no memory left; ``""`` for any other error.

    Args:
        error: raised by a framework.
    """
    text = str(error).lower()
    if any(word in text for word in _OF_GPUS):
        return ""
    if not isinstance(error, MemoryError) and not any(word in text for word in _WORDS):
        return ""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit == resource.RLIM_INFINITY:
        return (
            "The machine has no memory left for the model's process: send fewer rows at a time, or serve fewer models"
        )
    return (
        f"The model's process has used up its limit of {limit // _MB} MB: send fewer rows at a time, or raise "
        "SANDBOX_MEMORY_MB in the model's parameters"
    )
