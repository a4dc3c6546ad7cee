"""The named models, usable as targets on the command line."""
