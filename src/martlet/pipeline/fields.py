"""JSON fields of messages, as columns beside those of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARSED = "_parsed"


def with_fields(messages: DataFrame, schema: str) -> DataFrame:
    """Parse messages as JSON and add the fields that a schema names; nothing for an empty schema.

    A field that a message lacks is null; all fields are null if the message is not JSON.  A field
    replaces a column of the source that has the same name.

    Args:
        schema: the fields, as DDL.

    Raises:
        ParseException: the schema is not valid DDL.
    """
    from pyspark.sql import functions as F

    if not schema:
        return messages
    read = messages.withColumn(_PARSED, F.from_json(F.col("value").cast("string"), schema))
    names = {name.lower() for name in read.select(f"{_PARSED}.*").columns}
    others = [name for name in messages.columns if name.lower() not in names]
    return read.select(*others, f"{_PARSED}.*")
