"""Model configurations: reading, completion, validation, and the signatures that requests are checked against."""
