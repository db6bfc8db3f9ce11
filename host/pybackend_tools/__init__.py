"""What only commands use: clients of a server, and programs around it. No module of the server imports them."""
