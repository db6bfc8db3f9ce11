"""What a model's code is written against. Authors import it as ``triton_python_backend_utils``.

The classes here know nothing of processes or sockets. Whatever needs a server goes through the bound
:class:`~pybackend_sdk.runtime.Runtime`, so the same model code runs in a stub, under a test harness, or alone.
"""
