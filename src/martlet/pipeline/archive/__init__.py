"""The archive job: write topics continuously to a table of Parquet files.

A Spark Structured Streaming query, whose tasks read the log and write Parquet with pyarrow, so that
no message passes through the JVM.  Each micro-batch is committed atomically and exactly once: the
commit that publishes its files also records the archived offset of each queue.

=================== =====================================================================
`query`             the query and the commit of each micro-batch
`source`            the streaming source; its tasks write files and return manifests
`writing`           the work of a task; `rows` and `partition`: the row shape and folders
`json_fields`       parses JSON messages into columns
`table`             the protocol of a table: `parquet_table` with `commit_log`, or `delta_table`
`position`          the archived offsets, and the manifests that advance them
`store`             a folder, local or behind a URL
`compaction`        merges small files
=================== =====================================================================

It may import the client, Spark's source and the log. Start reading with `query`.
"""

from martlet.pipeline.archive.job import JOB, Result, archive
from martlet.pipeline.archive.options import ArchiveOptions
from martlet.pipeline.archive.query import Archive
from martlet.pipeline.archive.rows import CORRUPT

__all__ = ["CORRUPT", "JOB", "Archive", "ArchiveOptions", "Result", "archive"]
