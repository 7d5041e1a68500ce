"""The archive: topics as a table of Parquet files that grows while messages come in.

A Spark Structured Streaming query whose tasks read the log and write Parquet with pyarrow, so that
no message goes through Java.  Each micro-batch is committed as a whole, and exactly once: how far
each queue is archived is told by the very commit that lets its files be there.

=================== =====================================================================
`query`             the query, and what is done with each micro-batch
`source`            a stream of Spark's whose tasks write, and tell manifests
`writing`           what a task does; `rows` and `partition`: the shape of rows, their folders
`json_fields`       messages of JSON as columns
`table`             what a table is asked: `parquet_table` over `commit_log`, or `delta_table`
`store`             the folder, local or behind a URL
`compaction`        small files are joined
=================== =====================================================================
"""

from martlet.pipeline.archive.job import JOB, Result, archive
from martlet.pipeline.archive.options import ArchiveOptions
from martlet.pipeline.archive.query import Archive
from martlet.pipeline.archive.rows import CORRUPT

__all__ = ["CORRUPT", "JOB", "Archive", "ArchiveOptions", "Result", "archive"]
