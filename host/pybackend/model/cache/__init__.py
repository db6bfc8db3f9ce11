"""Response caches: repeated requests are answered without running the model again."""
