"""Errors in a test of a model. Each message says what was found, what was expected and what to do.

HarnessError
├── ModelDirectoryError  there is no such model at that path
├── ConfigError          the model's configuration is missing or wrong
├── LoadError            the model cannot be imported, completed or initialised; the text is the server's
├── InputError           a request does not fit the model
├── InferenceFailed      the model answered with an error, or raised
├── OutputError          a response does not fit the model's configuration
├── NoResponse           a request got no answer, or its last response did not carry the final flag
└── FinalizeError        the model did not end properly
"""

from pybackend_sdk.error import TritonError


class HarnessError(Exception):
    """Base class of the harness's own errors."""


class ModelDirectoryError(HarnessError):
    """There is no such model, or no such version, at that path."""


class ConfigError(HarnessError):
    """The model's configuration is missing or wrong."""


class LoadError(HarnessError):
    """The model cannot be loaded; the exception from its code, if there was one, is the cause of this one."""


class InputError(HarnessError):
    """A server would refuse this request, so the model would never see it."""


class OutputError(HarnessError):
    """The outputs of a response do not match the configuration."""


class NoResponse(HarnessError):
    """No response arrived; a server's client would wait on."""


class FinalizeError(HarnessError):
    """``finalize`` raised an exception, or the model could not be ended."""


class InferenceFailed(HarnessError):
    """The response is an error. The exception from the model, if there was one, is the cause of this one.

    Attributes:
        error: code and message, as a client receives them.
    """

    def __init__(self, error: TritonError) -> None:
        super().__init__(error.message())
        self.error = error
