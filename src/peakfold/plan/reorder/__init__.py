"""Orders of first runs of least peak: dynamic programming over downsets, whole or around what changed."""
