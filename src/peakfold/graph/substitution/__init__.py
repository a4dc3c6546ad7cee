"""Substitutions that are generated, tested and proved, and the book that keeps them."""
