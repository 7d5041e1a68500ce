"""Options of replication: a broker whose log is on several machines."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.addresses import Address, is_loopback, is_wildcard
from martlet.names import is_valid_name
from martlet.options.flag import OptionError, option
from martlet.options.options import Options
from martlet.text import MILLISECOND_NS, SECOND_NS


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class MetadataOptions(Options):
    """Where replicas agree on who is primary."""

    metadata: str = option(
        "",
        "where replicas agree on who is primary: etcd:<addr>:<port>,<addr>:<port> for replicas on"
        " several machines, or sqlite:<path> for replicas on this one",
        section="replicas",
    )
    replica_set: str = option(
        "martlet", "the name of the replica set, where several share one metadata store"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_valid_name(self.replica_set):
            raise OptionError(
                f"--replica-set={self.replica_set} is not valid: a name is made as that of a topic"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReplicationOptions(MetadataOptions):
    """Options of a broker that is one of several replicas."""

    replica_name: str = option(
        "", "the name of this replica in its replica set; empty for a broker without replicas"
    )
    replica_address: str = option(
        "127.0.0.1:4153",
        "<addr>:<port> where this replica listens, and where the others reach it",
    )
    initial_replicas: str = option(
        "",
        "NAME=<addr>:<port>,NAME=<addr>:<port> of all replicas: makes the replica set when it does"
        " not exist yet, from the data folder of the one that is named first",
    )
    replication: str = option(
        "sync",
        "when a publish is answered OK: 'sync': when enough replicas have it; 'async': when the"
        " primary has it",
        choices=(("sync", "sync"), ("async", "async")),
    )
    copies: int = option(
        0,
        "with --initial-replicas: how many replicas must have a message, the primary included (0:"
        " more than half of them)",
        limits=(0, None),
    )
    min_in_sync: int = option(
        0,
        "with --initial-replicas: refuse messages while fewer replicas are in sync (0: as many as"
        " --copies; with --replication=async: 1)",
        limits=(0, None),
    )
    sync_replica_timeout_ns: int = option(
        5 * SECOND_NS,
        "with --replication=sync, the time that a SEND waits for replicas unless it sets its own;"
        " then it is answered FLUSH_SLAVE_TIMEOUT, and its messages stay stored",
        limits=(MILLISECOND_NS, None),
    )
    replica_timeout_ns: int = option(
        2 * SECOND_NS,
        "a replica that is silent for longer is taken for dead",
        limits=(200 * MILLISECOND_NS, None),
    )
    replica_secret_file: str = option(
        "", "the file of a secret that all replicas share; they refuse who does not know it"
    )
    replica_tls_cert: str = option(
        "", "the file of the certificate by which this replica is known to the others"
    )
    replica_tls_key: str = option("", "the file of the certificate's key")
    replica_tls_ca_file: str = option(
        "", "the file of the authority that signs the certificates of all replicas"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.replica_name:
            self._check_alone()
            return
        if not is_valid_name(self.replica_name):
            raise OptionError(
                f"--replica-name={self.replica_name} is not valid: a name is made as that of a"
                " topic"
            )
        if not self.metadata:
            raise OptionError(
                "--replica-name needs --metadata: etcd:HOST:2379,HOST:2379 for replicas on several"
                " machines, or sqlite:PATH for replicas on this one"
            )
        require_replica_address("replica-address", self.replica_address)
        self._check_initial()
        self._check_trust()

    def _check_alone(self) -> None:
        """Start no broker without replicas where they were configured."""
        flags: dict[str, object] = {
            "metadata": self.metadata,
            "initial-replicas": self.initial_replicas,
            "copies": self.copies,
            "min-in-sync": self.min_in_sync,
        }
        for flag, value in flags.items():
            if value:
                raise OptionError(
                    f"--{flag}={value} needs --replica-name: the name of this replica, such as a"
                )

    def _check_initial(self) -> None:
        replicas = self.initial_addresses
        if replicas and replicas.get(self.replica_name) != self.replica_address:
            raise OptionError(
                f"--initial-replicas={self.initial_replicas} must have this replica, as"
                f" {self.replica_name}={self.replica_address}"
            )
        for flag, count in (("copies", self.copies), ("min-in-sync", self.min_in_sync)):
            if replicas and count > len(replicas):
                raise OptionError(
                    f"--{flag}={count} is more than the replicas of --initial-replicas,"
                    f" {len(replicas)}"
                )

    def _check_trust(self) -> None:
        tls = (self.replica_tls_cert, self.replica_tls_key, self.replica_tls_ca_file)
        if any(tls) and not all(tls):
            raise OptionError(
                "--replica-tls-cert, --replica-tls-key and --replica-tls-ca-file go together:"
                " replicas show each other certificates, and check them"
            )
        if not any(tls) and not self.replica_secret_file and not is_loopback(self.replica_address):
            raise OptionError(
                f"--replica-address={self.replica_address} is open to the network: give"
                " --replica-secret-file, or --replica-tls-cert, --replica-tls-key and"
                " --replica-tls-ca-file, at all replicas"
            )

    @property
    def initial_addresses(self) -> dict[str, str]:
        """The address of each replica of ``--initial-replicas``, by name. Raises OptionError."""
        addresses: dict[str, str] = {}
        for part in filter(None, self.initial_replicas.split(",")):
            name, _, address = part.partition("=")
            if not is_valid_name(name) or name in addresses:
                raise OptionError(
                    f"--initial-replicas={self.initial_replicas}: {part!r} must be"
                    " NAME=<addr>:<port>, each name once"
                )
            require_replica_address("initial-replicas", address)
            for other, other_address in addresses.items():
                if address == other_address:
                    raise OptionError(
                        f"--initial-replicas={self.initial_replicas}: {address} is the address of"
                        f" {other} and of {name}; each replica has its own"
                    )
            addresses[name] = address
        return addresses


def require_replica_address(flag: str, address: str) -> None:
    """Check the address of a replica. Raises OptionError."""
    host, colon, _ = address.rpartition(":")
    try:
        if not colon or not host:
            raise ValueError(f"{address!r} is no address: it must be like 10.0.0.1:4153")
        Address.parse(address)
    except ValueError as error:
        raise OptionError(f"--{flag}: {error}") from None
    if is_wildcard(address):
        raise OptionError(
            f"--{flag}: {address} is every address of a machine, and the other replicas connect to"
            " this one: give the address that reaches it, like 10.0.0.1:4153"
        )
