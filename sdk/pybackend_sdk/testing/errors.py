"""What can go wrong in a test of a model. Every message says what was found, what was expected and what to do.

HarnessError
├── ModelDirectoryError  there is no such model where the test says
├── ConfigError          the model's configuration is missing or wrong
├── LoadError            the model cannot be imported, completed or initialised; the text is the server's
├── InputError           a request does not fit the model
├── InferenceFailed      the model answered with an error, or raised
├── OutputError          a response does not fit the model's configuration
├── NoResponse           a request is not answered, or its last response was not marked as the last one
└── FinalizeError        the model did not end as it should
"""

from pybackend_sdk.error import TritonError


class HarnessError(Exception):
    """The base of all errors of the harness itself."""


class ModelDirectoryError(HarnessError):
    """There is no such model, or no such version of it, where the test says."""


class ConfigError(HarnessError):
    """The model's configuration is missing or wrong."""


class LoadError(HarnessError):
    """The model cannot be loaded: what its code raised is the cause of this exception."""


class InputError(HarnessError):
    """A request that the model would never see, because a server refuses it."""


class OutputError(HarnessError):
    """A response whose outputs are not as the configuration says."""


class NoResponse(HarnessError):
    """Nothing came, and a client of a server would wait on."""


class FinalizeError(HarnessError):
    """``finalize`` raised, or the model could not be ended."""


class InferenceFailed(HarnessError):
    """The response is an error. What the model raised, if it did, is the cause of this exception.

    Attributes:
        error: code and message as the client sees them.
    """

    def __init__(self, error: TritonError) -> None:
        super().__init__(error.message())
        self.error = error
