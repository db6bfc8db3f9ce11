"""Who may call the server: API keys, restricted groups of routes and methods, and headers that models see."""
