"""The topics of a job: check before it starts that they exist, and parse their JSON messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from martlet.options.flag import OptionError
from martlet.pipeline.options import StreamJobOptions
from martlet.spark.brokers.brokers import NoSuchTopicError, QueryBrokers
from martlet.spark.read.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARSED = "_parsed"


def require_topics(options: StreamJobOptions, named: Mapping[str, str]) -> None:
    """Check that the topics of a job exist, unless the job allows missing ones.

    Args:
        named: the option of the source that names the topics.

    Raises:
        OptionError: a topic does not exist, or a name or pattern is invalid.
        BrokerUnreachable, BrokerRefused: a broker does not answer, or rejects the request.
    """
    if options.allow_missing_topics:
        return
    try:
        brokers = QueryBrokers(ReadOptions.parse({**options.source, **named}, "batch"))
        try:
            brokers.require_topics(brokers.poll(patient=True))
        finally:
            brokers.close()
    except NoSuchTopicError as error:
        raise OptionError(
            f"{error}. --allow-missing-topics goes on without it, and reads it once it exists"
        ) from None
    except ValueError as error:
        raise OptionError(str(error)) from None


def with_fields(messages: DataFrame, schema: str) -> DataFrame:
    """Parse messages as JSON and add the fields that a schema names; nothing for an empty schema.

    A field that a message lacks is null; all fields are null if the message is not JSON.  A field
    replaces a column of the source that has the same name.

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
