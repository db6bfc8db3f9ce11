"""Domain objects of inference; they know no transport."""
