"""Streams from a topic to topics, as a process of its own, to be killed.

    stream_job.py ADDRESSES FOLDER [once]

=========  ======================================================================================
copied     each row, as QUEUE-OFFSET
windows    of queue 0: offsets counted and summed up by event time, once a window is final
pandas     by applyInPandasWithState: rows counted and offsets summed up, by key
state      the same by transformWithState
=========  ======================================================================================

It prints a line for each micro-batch, which begins with the stream's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from martlet.pipeline.job import Run
from martlet.pipeline.stream_monitor import follow
from martlet.spark.java import spark_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

NAMES = ("copied", "windows", "pandas", "state")
TOPIC = "in"
OFFSETS_A_WINDOW = 500
MASTER = "local[2,3]"
"""Two tasks at a time, each of which is tried three times."""
_SUMS = "count BIGINT, total BIGINT"
_OUTPUT = f"key STRING, before BIGINT, {_SUMS}"
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS: dict[str, str | int | bool] = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.streaming.stateStore.providerClass": _ROCKS,
}


def copied(rows: DataFrame) -> DataFrame:
    return rows.select(F.concat_ws("-", "partition", "offset").alias("value"))


def windows(rows: DataFrame) -> DataFrame:
    # A second of event time for each 100 offsets: no row is late, and each window has as many.
    at = F.timestamp_seconds(F.expr("offset div 100"))
    timed = rows.where("partition = 0").withColumn("at", at).withWatermark("at", "1 second")
    counted = timed.groupBy(F.window("at", f"{OFFSETS_A_WINDOW // 100} seconds")).agg(
        F.count("*").alias("count"), F.sum("offset").alias("total")
    )
    start = F.unix_timestamp("window.start").alias("start")
    return counted.select(F.to_json(F.struct(start, "count", "total")).alias("value"))


def _summed_up(key: tuple[Any, ...], parts: Iterable[pd.DataFrame], state: Any) -> Iterator[Any]:
    before, total = state.get if state.exists else (0, 0)
    count = before
    for part in parts:
        count, total = count + len(part), total + int(part["offset"].sum())
    state.update((count, total))
    sums = {"key": [key[0]], "before": [before], "count": [count], "total": [total]}
    yield pd.DataFrame(sums)


class _Sums(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("sums", _SUMS)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        kept = self._state.get()
        before, total = kept if kept is not None else (0, 0)
        count = before
        for row in rows:
            count, total = count + 1, total + row.offset
        self._state.update((count, total))
        yield Row(key=key[0], before=before, count=count, total=total)

    def close(self) -> None:
        pass


def pandas(rows: DataFrame) -> DataFrame:
    summed = _keyed(rows).applyInPandasWithState(_summed_up, _OUTPUT, _SUMS, "append", "NoTimeout")
    return summed.select(F.to_json(F.struct("*")).alias("value"))


def state(rows: DataFrame) -> DataFrame:
    summed = _keyed(rows).transformWithState(_Sums(), _OUTPUT, "Append", "None")
    return summed.select(F.to_json(F.struct("*")).alias("value"))


def _keyed(rows: DataFrame) -> GroupedData:
    key = F.concat_ws("-", "partition", F.col("offset") % 3).alias("key")
    return rows.select(key, "offset").groupBy("key")


def main() -> None:
    """Run until it is killed, or all is done."""
    addresses, folder, *once = sys.argv[1:]
    spark = spark_session("stream job", MASTER, **_SETTINGS)
    rows = (
        spark.readStream.format("martlet")
        .options(addresses=addresses, topic=TOPIC, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", 1_000_000 if once else 1500)
        .schema("partition INT, offset BIGINT")
        .load()
    )
    names: dict[str, str] = {}

    def start(name: str) -> StreamingQuery:
        results: DataFrame = globals()[name](rows)
        query = (
            results.writeStream.format("martlet")
            .options(addresses=addresses, topic=name, timeoutMs=120_000)
            .option("checkpointLocation", str(Path(folder) / name))
            .trigger(**({"availableNow": True} if once else {"processingTime": "0 seconds"}))
            .start()
        )
        names[query.id] = name
        return query

    follow([partial(start, name) for name in NAMES], Run(spark), "done", names=names)


if __name__ == "__main__":
    main()
