"""Commands for a terminal: write, examine, ask and watch models and servers."""
