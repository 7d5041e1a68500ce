"""The common options of all jobs of ``martlet pipeline``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from martlet.addresses import Address
from martlet.options.addresses import (
    HOW_TO_NAME,
    address_option,
    check_trusted,
    default_addresses,
    lookup_option,
    trusted_brokers_option,
)
from martlet.options.flag import OptionError, option
from martlet.options.network import operator_token_file
from martlet.options.options import LogOptions
from martlet.reader.brokers.addresses import split_at_commas
from martlet.text import MILLISECOND_NS, MINUTE_NS, SECOND_NS


@dataclass(frozen=True, kw_only=True)
class JobOptions(LogOptions):
    """The brokers of a job, and the Spark that runs it."""

    addresses: tuple[str, ...] = address_option(
        "addresses",
        "nsqd-http-address",
        description="<addr>:<port> of a broker's HTTP listener, or https://<addr>:<port>; may be"
        " given several times, or separated by commas",
    )
    lookupd_http_addresses: tuple[str, ...] = lookup_option()
    timeout_ns: int = option(
        5 * MINUTE_NS,
        "how long a broker may be unreachable before the job fails",
        limits=(0, None),
    )
    tls_ca_file: str = option(
        "",
        "CA certificates to verify brokers with, in addition to those that the machine trusts; like"
        " the next two files, on each machine where Spark runs tasks",
    )
    tls_cert_file: str = option("", "the client certificate for brokers that require one")
    tls_key_file: str = option("", "the key of the client certificate")
    tls_verify: bool = option(True, "false: accept any certificate of a broker")
    operator_token_file: str = operator_token_file(
        ", for jobs that read; on each machine where Spark runs tasks"
    )
    trusted_brokers: tuple[str, ...] = trusted_brokers_option()
    auth_secret: str = option("", "the secret for brokers with AUTH, for jobs that write")
    master: str = option(
        "",
        "the Spark master: local[4], spark://HOST:7077, yarn, k8s://... (default: the one of"
        " spark-submit, else local[*])",
        section="Spark",
    )
    spark_conf: tuple[str, ...] = option(
        (), "a Spark setting, like spark.executor.memory=4g; may be given several times"
    )
    metrics_address: str = option(
        "", "<addr>:<port> to serve the job's metrics for Prometheus at (default: none)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for address in self.http_addresses:
            _require_address("address", address, "127.0.0.1:4151")
        for address in self.lookup_addresses:
            _require_address("lookup", address, "127.0.0.1:4161")
        for setting in self.spark_conf:
            name, equals, _ = setting.partition("=")
            if not (equals and name.startswith("spark.")):
                raise OptionError(
                    f"--spark-conf={setting} is not a setting; spark.executor.memory=4g is one"
                )
        check_trusted("--trusted-broker", self.trusted_brokers)
        if self.metrics_address:
            _require_address("metrics-address", self.metrics_address, "127.0.0.1:9100")

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """The addresses of the brokers, split at commas."""
        return split_at_commas(",".join(self.addresses))

    @property
    def lookup_addresses(self) -> tuple[str, ...]:
        """The addresses of the lookups, split at commas."""
        return split_at_commas(",".join(self.lookupd_http_addresses))

    @property
    def source(self) -> dict[str, str]:
        """The options of the source `martlet` for the brokers."""
        options = {"timeoutMs": str(self.timeout_ns // MILLISECOND_NS)}
        if self.addresses:
            options["addresses"] = ",".join(self.http_addresses)
        if self.lookupd_http_addresses:
            options["lookup"] = ",".join(self.lookup_addresses)
        if self.operator_token_file:
            options["operatorTokenFile"] = self.operator_token_file
        if self.trusted_brokers:
            options["trustedBrokers"] = ",".join(self.trusted_brokers)
        return options | self.tls

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink `martlet` for the brokers."""
        options = {"timeoutMs": str(max(1, self.timeout_ns // MILLISECOND_NS))}
        if self.auth_secret:
            options["authSecret"] = self.auth_secret
        if self.tls:
            options |= {"tls": "true"} | self.tls
        return options | {"addresses": ",".join(self.http_addresses)}

    @property
    def tls(self) -> dict[str, str]:
        """The TLS options of source and sink."""
        options = {
            "tlsCaFile": self.tls_ca_file,
            "tlsCertFile": self.tls_cert_file,
            "tlsKeyFile": self.tls_key_file,
            "tlsVerify": "" if self.tls_verify else "false",
        }
        return {name: value for name, value in options.items() if value}

    def require_brokers(self, otherwise: str = "") -> None:
        """Check that brokers are named, by flags or defaults. Raises OptionError, whose text has
        what else may be named.
        """
        if not (self.addresses or self.lookupd_http_addresses):
            brokers, daemons = default_addresses()
            object.__setattr__(self, "addresses", brokers)
            object.__setattr__(self, "lookupd_http_addresses", daemons)
        if not (self.addresses or self.lookupd_http_addresses):
            raise OptionError(f"no brokers: name them, {HOW_TO_NAME}{otherwise}")


@dataclass(frozen=True, kw_only=True)
class StreamJobOptions(JobOptions):
    """The options of a job that runs continuously."""

    checkpoint: str = option(
        "",
        "folder or URL that stores the position, so that a restarted job continues",
        section="batches",
    )
    once: bool = option(False, "process the messages that are there now, and end")
    allow_missing_topics: bool = option(
        False,
        "run without topics that do not exist yet; each is read from its start once it exists"
        " (default: an error, exit code 2)",
    )
    interval_ns: int = option(
        10 * SECOND_NS, "without --once: how often a micro-batch starts", limits=(0, None)
    )
    max_offsets: int = option(1_000_000, "maximum messages of one micro-batch", limits=(1, None))

    @property
    def trigger(self) -> dict[str, Any]:
        """When micro-batches start, as arguments of Spark's `DataStreamWriter.trigger`."""
        if self.once:
            return {"availableNow": True}
        return {"processingTime": f"{self.interval_ns // MILLISECOND_NS} milliseconds"}


def _require_address(flag: str, text: str, like: str) -> None:
    """Check that a text is a host and a port; the port has no default."""
    try:
        address = text.removeprefix("https://").removeprefix("http://")
        Address.parse(address)
        _, colon, port = address.rpartition(":")
        if not (colon and port.isdigit()):
            raise ValueError
    except ValueError:
        raise OptionError(f"--{flag}={text} is not <addr>:<port>, as {like}") from None
