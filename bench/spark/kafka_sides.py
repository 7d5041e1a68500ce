"""A broker of Kafka and one of Martlet, as sides of a comparison with the same load and queries."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from bench.http_api import post, stored_count
from bench.peers.daemons import Daemon, Kind, Missing
from bench.spark.kafka_wire import KafkaConnection
from bench.spark.letters import TOPIC, Bodies, command, send
from martlet.testing import BrokerProcess

ROOT = Path(__file__).parents[2]
TARGET = "copied"
PARTITIONS = os.cpu_count() or 1
"""Of Kafka's topics: as many tasks read one."""
_START = """\
cat >{{folder}}/server.properties <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{{port2}}
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{port2}}
controller.listener.names=CONTROLLER
log.dirs={{folder}}/log
offsets.topic.replication.factor=1
log.segment.delete.delay.ms=1000
END
java -cp '{jars}' kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAA \
    -c {{folder}}/server.properties &&
    exec java -Xms1g -Xmx1g -cp '{jars}' kafka.Kafka {{folder}}/server.properties
"""


@dataclass(frozen=True)
class Side:
    """A broker with a topic that is read, and another that is written.

    Attributes:
        format: the name of Spark's source and sink.
        source: the source's options, for the first topic from its start.
        sink: the sink's options, for the other topic.
        publish: publish to the first topic.
        empty: delete the other topic, and return how many messages it had.
    """

    format: str
    source: dict[str, str]
    sink: dict[str, str]
    publish: Callable[[Iterable[Bodies]], None]
    empty: Callable[[], int]

    def read(self, spark: SparkSession, schema: str = "") -> DataFrame:
        """The messages as a batch, with the columns of a schema or with all."""
        reader = spark.read.format(self.format).options(**self.source)
        if schema and self.format == "martlet":
            return reader.schema(schema).load()
        return selected(reader.load(), schema)

    def stream(self, spark: SparkSession, schema: str = "", **options: str | int) -> DataFrame:
        """The same as a stream, with more options."""
        reader = spark.readStream.format(self.format).options(**self.source | options)
        if schema and self.format == "martlet":
            return reader.schema(schema).load()
        return selected(reader.load(), schema)

    def write(self, values: DataFrame) -> DataStreamWriter:
        """Write a column `value`."""
        return values.writeStream.format(self.format).options(**self.sink)


def selected(rows: DataFrame, schema: str) -> DataFrame:
    """The columns of a schema; all without one."""
    return rows.select(*(column.split()[0] for column in schema.split(","))) if schema else rows


def jars_of(name: str) -> list[Path]:
    """The jars of a broker (`kafka`) or of Spark's `connector` for it. Raises Missing."""
    command = [str(ROOT / ".ci/kafka"), pyspark.__version__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(done.stderr.strip())
    return sorted((Path(done.stdout.strip()) / name).glob("*.jar"))


@contextmanager
def kafka() -> Iterator[Side]:
    """Start Kafka with the topic that is read. Raises Missing."""
    script = _START.format(jars=":".join(map(str, jars_of("kafka"))))
    kind = Kind("Kafka", "kafka", False, "sh", ("-c", script), ".ci/kafka gets it", ())
    with Daemon(kind) as daemon, KafkaConnection(daemon.port) as connection:
        connection.create(TOPIC, PARTITIONS)
        servers = {"kafka.bootstrap.servers": f"127.0.0.1:{daemon.port}"}
        connection.create(TARGET, PARTITIONS)

        def empty() -> int:
            count = connection.stored_count(TARGET, PARTITIONS)
            connection.delete(TARGET)
            connection.create(TARGET, PARTITIONS)
            return count

        yield Side(
            "kafka",
            servers | {"subscribe": TOPIC, "startingOffsets": "earliest"},
            servers | {"topic": TARGET},
            lambda batches: connection.publish(TOPIC, PARTITIONS, batches),
            empty,
        )


@contextmanager
def martlet(folder: Path) -> Iterator[Side]:
    """Start a broker on a folder."""
    with BrokerProcess(folder) as broker:
        addresses = {"addresses": broker.http_address}

        def empty() -> int:
            count = stored_count(broker.http_address, TARGET)
            post(broker.http_address, f"topic/delete?topic={TARGET}")
            return count

        yield Side(
            "martlet",
            addresses | {"topic": TOPIC, "startingOffsets": "earliest"},
            addresses | {"topic": TARGET},
            lambda batches: send(broker.tcp_address, map(command, batches)),
            empty,
        )
