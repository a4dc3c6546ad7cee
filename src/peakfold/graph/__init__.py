"""WHAT changes: equivalence-preserving rewrites of the Graph."""
