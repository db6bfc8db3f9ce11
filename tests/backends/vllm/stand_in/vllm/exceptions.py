"""Errors."""


class VLLMError(Exception):
    """Any of vLLM's."""


class VLLMClientError(VLLMError):
    """The request is wrong."""


class VLLMServerError(VLLMError):
    """The server has failed."""


class VLLMValidationError(VLLMClientError):
    """A value is wrong."""
