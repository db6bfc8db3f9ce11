"""Model configurations: read from disk, completed, checked; and what requests are held against."""
