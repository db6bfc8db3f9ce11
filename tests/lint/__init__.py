"""Rules for sources and pages that neither ruff nor mypy nor the import contracts can see: ``make lint`` runs them."""
