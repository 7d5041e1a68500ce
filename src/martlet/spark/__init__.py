"""Martlet for Spark: the data source, and the pipelines on it. Needs the extra `spark`."""
