"""Measurements against what users have today."""
