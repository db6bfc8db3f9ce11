"""OpenAI's API on the port for HTTP."""
