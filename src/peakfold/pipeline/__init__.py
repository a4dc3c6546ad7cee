"""The stages in order, each named, timed and dumpable."""
