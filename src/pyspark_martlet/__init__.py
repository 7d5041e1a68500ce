"""Where PySpark looks for ``format("martlet")``: any module `pyspark_*` with a `DefaultSource`."""

from martlet.spark.source import MartletDataSource as DefaultSource

__all__ = ["DefaultSource"]
