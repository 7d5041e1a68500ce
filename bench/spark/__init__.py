"""Spark's source, sink and jobs beside Spark's own Parquet. Shared parts: `beside`, `letters`."""
