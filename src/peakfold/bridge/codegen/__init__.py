"""Graph and Schedule to readable Python source."""
