"""What each operator means, as tables."""
