"""Domain objects of inference, independent of any transport."""
