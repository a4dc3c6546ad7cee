"""Fission: a region of the program done in parts, along one dimension (MAGIS, ASPLOS 2024, section 4)."""
