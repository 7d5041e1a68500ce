"""Martlet and PySpark: the source, and the pipelines that are built on it."""
