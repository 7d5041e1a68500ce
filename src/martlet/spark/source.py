"""The data source: ``spark.read.format("martlet")`` and ``spark.readStream.format("martlet")``.

Spark finds it by itself wherever the package is installed, through the module `pyspark_martlet`.

Spark uses it in several processes, of which each imports this module: to look up sources and to
create one, to plan reads and writes, in tasks and to commit. So a method imports what it needs.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class MartletDataSource(DataSource):
    """Topics of Martlet brokers as a table. `martlet.reader.options` has the options."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "martlet"

    def schema(self) -> StructType:
        """All columns; see `martlet.reader.schema`."""
        from martlet.reader.options import view_of
        from martlet.spark.read.schema import schema_of

        return schema_of(view_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader for a batch query on the wanted columns."""
        from martlet.reader.options import ReadOptions
        from martlet.spark.read.batch import BatchReader
        from martlet.spark.read.schema import arrow_schema

        options = ReadOptions.parse(self.options, "batch")
        columns = arrow_schema(schema, options.view)
        if not options.takes_filters:
            return BatchReader(options, columns)
        from martlet.spark.read.pushdown import PushdownReader

        return PushdownReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer for a batch query's rows."""
        from martlet.spark.write.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer for a stream's rows; what it writes is appended, whatever the output mode."""
        from martlet.spark.write.sink import stream_writer

        return stream_writer(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader for a stream of the wanted columns."""
        from martlet.reader.options import ReadOptions
        from martlet.spark.read.schema import arrow_schema
        from martlet.spark.read.stream import FailingStreamReader, StreamReader

        try:
            options = ReadOptions.parse(self.options, "stream")
            return StreamReader(options, arrow_schema(schema, options.view))
        except ValueError as error:
            return FailingStreamReader(error)
