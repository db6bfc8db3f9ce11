"""An engine as large language models have them: asyncio inside, one stream per request, requests can be aborted."""

import asyncio


class Engine:
    """Tells the words of its settings, one at a time, to all requests at once."""

    def __init__(self, words, pause_s):
        self.words = words
        self.pause_s = pause_s
        self.aborted = []
        self.running = 0

    async def generate(self, prompt, limit, request_id):
        """The text so far and whether it is finished, after each word."""
        self.running += 1
        try:
            text = prompt
            for count, word in enumerate(self.words[:limit], 1):
                await asyncio.sleep(self.pause_s)
                if request_id in self.aborted:
                    return
                text += " " + word
                yield text, count == min(limit, len(self.words))
        finally:
            self.running -= 1

    async def abort(self, request_id):
        """End a request early."""
        self.aborted.append(request_id)
