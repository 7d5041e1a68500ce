"""Check before a job starts that its topics exist."""

from __future__ import annotations

from collections.abc import Mapping

from martlet.options.flag import OptionError
from martlet.pipeline.options import StreamJobOptions
from martlet.spark.brokers.brokers import NoSuchTopicError, QueryBrokers
from martlet.spark.read.options import ReadOptions


def require_topics(options: StreamJobOptions, named: Mapping[str, str]) -> None:
    """Check that the topics of a job exist, unless the job allows missing ones.

    Args:
        options: the options of the job.
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
