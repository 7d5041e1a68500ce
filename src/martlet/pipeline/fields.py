"""The fields of messages that are JSON, as columns beside those of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARSED = "_parsed"


def with_fields(messages: DataFrame, schema: str) -> DataFrame:
    """Add the fields that a DDL names; without one nothing.

    A field that a message lacks is null, and so are all of one that is no JSON.  A field that is
    called as a column goes before it.

    Raises:
        ParseException: it is no DDL.
    """
    from pyspark.sql import functions as F

    if not schema:
        return messages
    read = messages.withColumn(_PARSED, F.from_json(F.col("value").cast("string"), schema))
    names = {name.lower() for name in read.select(f"{_PARSED}.*").columns}
    others = [name for name in messages.columns if name.lower() not in names]
    return read.select(*others, f"{_PARSED}.*")
