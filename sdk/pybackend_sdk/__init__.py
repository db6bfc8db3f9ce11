"""The API that model code is written against. Authors import it as ``triton_python_backend_utils``.

The classes know nothing of processes or sockets. Every operation that needs a server goes through the bound
:class:`~pybackend_sdk.runtime.Runtime`, so the same model code runs in a stub, under a test harness, or alone.
"""
