"""One Report; the terminal, JSON and HTML are its three faces."""
