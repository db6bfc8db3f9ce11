"""What models' processes may do: decided here, carried out by each process itself, and checked from outside."""
