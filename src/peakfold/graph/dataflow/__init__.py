"""Control flow as dataflow: switch and merge, with dead values."""
