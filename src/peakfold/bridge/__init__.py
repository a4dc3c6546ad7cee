"""The only wing that imports torch."""
