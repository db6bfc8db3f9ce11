"""The refusal of a call whose model does not serve, or does not exist: the reference has one text for both."""

from pybackend.errors import ErrorCode, InferenceError, UnknownModelError


def not_ready(name: str, why: InferenceError | None = None) -> InferenceError:
    """The error of a call to a model that is not ready, with the reason if there is one."""
    text = f"Failed for execute the inference request. Model '{name}' is not ready."
    if why is None:
        return InferenceError(text, ErrorCode.UNAVAILABLE)
    if isinstance(why, UnknownModelError):
        return UnknownModelError(f"{text} {why.message}", ErrorCode.INTERNAL)
    return InferenceError(f"{text} {why.message}", ErrorCode.UNAVAILABLE)
