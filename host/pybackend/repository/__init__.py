"""Model repositories on disk, and the models loaded from them.

A model that cannot be loaded is a ModelLoadError with the reason. Questions and requests that have no answer, such as
those for an unknown model, are InferenceErrors with the client's code and text.
"""
