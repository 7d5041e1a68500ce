"""Topics as Arrow data, without Spark: for DuckDB, Polars, pandas and all that takes Arrow streams.

::

    import duckdb
    from martlet import arrow

    orders = arrow.scan("orders", addresses="127.0.0.1:4151")
    duckdb.sql("SELECT tag, count(*) FROM orders WHERE partition = 0 GROUP BY tag")

A read holds two record batches at most, of about 4 MiB.  It reads the broker's segment files where
they are on this machine, and asks the broker elsewhere, as the Spark source does: the columns, the
options and the errors are those of ``docs/pipelines/source.md``.

May import: `martlet.reader`. Start with `martlet.arrow.topic_scan`.
"""

from martlet.arrow.topic_scan import TopicScan, read, scan

__all__ = ["TopicScan", "read", "scan"]
