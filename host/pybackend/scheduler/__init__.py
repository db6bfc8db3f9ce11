"""In which order, and to which instance, requests go."""
