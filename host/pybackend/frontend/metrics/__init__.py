"""The metrics page: its families, and the application that serves it."""
