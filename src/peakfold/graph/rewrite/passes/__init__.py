"""Passes: frozen, named, pure; each says whether it keeps bits."""
