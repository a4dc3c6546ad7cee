"""The language: types, Graph, Plan, and their text."""
