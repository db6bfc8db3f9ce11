"""How property tests run here."""

from hypothesis import settings

# On a busy machine one example may take long for reasons that have nothing to do with it.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
