"""Load the source, run it on the user's own tensors, profile, measure and compare."""
