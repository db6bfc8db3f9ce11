"""Model repositories on disk, and the models loaded from them."""
