"""The contract between host and stub: messages, codec, framing, datatypes; no sockets, threads or asyncio."""
