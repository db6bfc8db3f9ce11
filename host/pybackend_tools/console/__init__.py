"""The console: pages for the browser about a running server.

It is a client of the public routes, in its own process.
"""
