"""The options of ``martlet relay``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options import sending
from martlet.options.client import ClientOptions, client_options, without_effect
from martlet.options.flag import Flag, FlagKind, OptionError, option
from martlet.options.tools import SourceOptions, require_addresses, require_names


@dataclass(frozen=True, kw_only=True)
class RelayOptions(SourceOptions):
    """What ``martlet relay`` is started with.

    Raises:
        OptionError: no topic, no destination, a name that is none, or a circle.
    """

    channel: str = option("channel", FlagKind.STRING, "nsq_to_nsq", "the channel")
    destination_topic: str = option(
        "destination-topic",
        FlagKind.STRING,
        "",
        "the topic to publish to (default: each message's own)",
        section="destination",
    )
    destination_addresses: tuple[str, ...] = option(
        "destination-nsqd-tcp-address",
        FlagKind.STRINGS,
        (),
        "<addr>:<port> of a broker to publish to; may be given several times",
    )
    mode: str = sending.mode("destinations")
    producer_opts: tuple[str, ...] = option(
        "producer-opt",
        FlagKind.STRINGS,
        (),
        "KEY,VALUE for the destinations, as --consumer-opt",
    )
    status_every: int = sending.status_every(
        "log how long publishing takes after so many messages (0: never)"
    )
    require_json_field: str = option(
        "require-json-field",
        FlagKind.STRING,
        "",
        "pass only JSON objects with this field; others are finished and left out",
        section="filter",
    )
    require_json_value: str = option(
        "require-json-value",
        FlagKind.STRING,
        "",
        "and only where it has this value, a text or a number",
    )
    whitelist_json_fields: tuple[str, ...] = option(
        "whitelist-json-field",
        FlagKind.STRINGS,
        (),
        "pass only this field of JSON objects; may be given several times",
    )

    @property
    def producer(self) -> ClientOptions:
        """What ``--producer-opt`` says."""
        return client_options("producer-opt", self.producer_opts)

    def without_effect(self) -> list[tuple[Flag, object]]:
        """See `Options`."""
        return super().without_effect() + without_effect("producer-opt", self.producer)

    @property
    def filters(self) -> bool:
        """Whether messages are read as JSON."""
        return bool(self.require_json_field or self.whitelist_json_fields)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.producer
        if not self.topics or not self.channel:
            raise OptionError("--topic and --channel are needed: which messages are to be passed?")
        if not self.destination_addresses:
            raise OptionError("--destination-nsqd-tcp-address is missing: where are they to go?")
        require_names("destination-topic", filter(None, [self.destination_topic]))
        require_addresses("destination-nsqd-tcp-address", self.destination_addresses)
        if self.require_json_value and not self.require_json_field:
            raise OptionError("--require-json-value needs a --require-json-field: of which field?")
        same_topic = not self.destination_topic or self.destination_topic in self.topics
        circle = set(self.nsqd_tcp_addresses) & set(self.destination_addresses)
        if circle and same_topic:
            raise OptionError(
                f"messages would go round in a circle: {min(circle)} is where they come from and"
                " where they go; give another --destination-topic"
            )
