"""A long run of mixed requests: what a server holds before and after a million of them."""
