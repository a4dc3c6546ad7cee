"""Graph and Schedule become readable Python source."""
