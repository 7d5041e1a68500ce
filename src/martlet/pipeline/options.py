"""The options that all jobs of ``martlet pipeline`` have."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.addresses import Address
from martlet.durations import MILLISECOND_NS, MINUTE_NS, SECOND_NS
from martlet.options.flag import OptionError, option
from martlet.options.options import LogOptions


@dataclass(frozen=True, kw_only=True)
class JobOptions(LogOptions):
    """The brokers of a job, and where it runs."""

    addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a broker's HTTP door, or https://<addr>:<port>; may be given several"
        " times, or with commas",
        section="brokers",
    )
    lookupd_http_addresses: tuple[str, ...] = option(
        (),
        "<addr>:<port> of a lookup that knows the brokers; may be given several times",
        name="lookupd-http-address",
    )
    timeout_ns: int = option(
        5 * MINUTE_NS,
        "how long a broker may be out of reach before the job fails",
        limits=(0, None),
    )
    tls_ca_file: str = option(
        "",
        "certificates of the authorities that brokers' certificates are checked with, beside those"
        " that the machine trusts; as all of these files, on each machine where Spark runs tasks",
    )
    tls_cert_file: str = option("", "the certificate to show brokers")
    tls_key_file: str = option("", "its key")
    tls_verify: bool = option(True, "false: take any certificate")
    auth_secret: str = option("", "what brokers with AUTH are told by a job that writes")
    master: str = option(
        "",
        "where Spark runs: local[4], spark://HOST:7077, yarn, k8s://... (default: what"
        " spark-submit says, else local[*])",
        section="Spark",
    )
    spark_conf: tuple[str, ...] = option(
        (), "a setting of Spark, as spark.executor.memory=4g; may be given several times"
    )
    metrics_address: str = option(
        "", "<addr>:<port> where Prometheus finds the job's metrics (default: nowhere)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for address in self.http_addresses:
            _require_place("addresses", address, "127.0.0.1:4151")
        for address in self.lookup_addresses:
            _require_place("lookupd-http-address", address, "127.0.0.1:4161")
        for setting in self.spark_conf:
            name, equals, _ = setting.partition("=")
            if not (equals and name.startswith("spark.")):
                raise OptionError(
                    f"--spark-conf={setting} is no setting; spark.executor.memory=4g is one"
                )
        if self.metrics_address:
            _require_place("metrics-address", self.metrics_address, "127.0.0.1:9100")

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """The brokers' addresses, one a piece."""
        return _pieces(self.addresses)

    @property
    def lookup_addresses(self) -> tuple[str, ...]:
        """The lookups' addresses, one a piece."""
        return _pieces(self.lookupd_http_addresses)

    @property
    def source(self) -> dict[str, str]:
        """The options of the source `martlet` that say where the brokers are."""
        found = {"timeoutMs": str(self.timeout_ns // MILLISECOND_NS)}
        if self.addresses:
            found["addresses"] = ",".join(self.http_addresses)
        if self.lookupd_http_addresses:
            found["lookupAddresses"] = ",".join(self.lookup_addresses)
        return found | self.tls

    @property
    def sink(self) -> dict[str, str]:
        """The options of the sink `martlet` that say where the brokers are."""
        found = {"timeoutMs": str(max(1, self.timeout_ns // MILLISECOND_NS))}
        if self.auth_secret:
            found["authSecret"] = self.auth_secret
        if self.tls:
            found |= {"tls": "true"} | self.tls
        return found | {"addresses": ",".join(self.http_addresses)}

    @property
    def tls(self) -> dict[str, str]:
        """The options of source and sink that say how brokers are spoken to in TLS."""
        found = {
            "tlsCaFile": self.tls_ca_file,
            "tlsCertFile": self.tls_cert_file,
            "tlsKeyFile": self.tls_key_file,
            "tlsVerify": "" if self.tls_verify else "false",
        }
        return {name: value for name, value in found.items() if value}

    def require_brokers(self) -> None:
        """Check that brokers are named. Raises OptionError."""
        if not (self.addresses or self.lookupd_http_addresses):
            raise OptionError(
                "no brokers: name them with --addresses=HOST:PORT, or a lookup that knows them with"
                " --lookupd-http-address=HOST:PORT"
            )


@dataclass(frozen=True, kw_only=True)
class StreamJobOptions(JobOptions):
    """A job that goes on for as long as messages come in."""

    checkpoint: str = option(
        "",
        "folder or URL where the position is kept, so that a job started again goes on",
        section="batches",
    )
    once: bool = option(False, "do what there is now, and end")
    allow_missing_topics: bool = option(
        False,
        "go on without topics that do not exist yet; each is read from its start once it does"
        " (default: an error, exit code 2)",
    )
    interval_ns: int = option(10 * SECOND_NS, "else how often", limits=(0, None))
    max_offsets: int = option(1_000_000, "the most messages of one micro-batch", limits=(1, None))

    @property
    def interval(self) -> str:
        """The interval as Spark writes it."""
        return f"{self.interval_ns // MILLISECOND_NS} milliseconds"


def _require_place(flag: str, text: str, like: str) -> None:
    """Check that a text is a host and a port, which has no default."""
    try:
        place = text.removeprefix("https://").removeprefix("http://")
        Address.parse(place)
        _, colon, port = place.rpartition(":")
        if not (colon and port.isdigit()):
            raise ValueError
    except ValueError:
        raise OptionError(f"--{flag}={text} is not <addr>:<port>, as {like}") from None


def _pieces(values: tuple[str, ...]) -> tuple[str, ...]:
    pieces = (piece.strip() for value in values for piece in value.split(","))
    return tuple(dict.fromkeys(piece for piece in pieces if piece))
