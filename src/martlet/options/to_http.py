"""The options of ``martlet to-http``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from martlet.options import sending
from martlet.options.flag import FlagKind, OptionError, option
from martlet.options.http_client import connect_timeout, request_timeout
from martlet.options.tools import SourceOptions

DEFAULT_CONTENT_TYPE = "application/octet-stream"


@dataclass(frozen=True, kw_only=True)
class ToHttpOptions(SourceOptions):
    """What ``martlet to-http`` is started with.

    Raises:
        OptionError: no topic, no URL, or both kinds of them; a header or a URL that is none.
    """

    gives_up: ClassVar[bool] = True
    channel: str = option("channel", FlagKind.STRING, "nsq_to_http", "the channel")
    sample: float = option(
        "sample", FlagKind.FLOAT, 1.0, "the part of the messages to send, from 0 to 1"
    )
    post_urls: tuple[str, ...] = option(
        "post",
        FlagKind.STRINGS,
        (),
        "a URL to POST each message to; may be given several times",
        section="requests",
    )
    get_urls: tuple[str, ...] = option(
        "get",
        FlagKind.STRINGS,
        (),
        "a URL to GET, with %s where the message is to stand; may be given several times",
    )
    mode: str = sending.mode("URLs", multicast=True)
    publishers: int = option(
        "n", FlagKind.INT, 100, "how many messages are on their way at once", limits=(1, 100_000)
    )
    content_type: str = option(
        "content-type", FlagKind.STRING, DEFAULT_CONTENT_TYPE, "the Content-Type of a POST"
    )
    headers: tuple[str, ...] = option(
        "header", FlagKind.STRINGS, (), "NAME:VALUE of each request; may be given several times"
    )
    connect_timeout_ns: int = connect_timeout()
    request_timeout_ns: int = request_timeout(seconds=20)
    status_every: int = sending.status_every("log how long requests take after so many (0: never)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.topics or not self.channel:
            raise OptionError("--topic and --channel are needed: which messages are to be sent?")
        if bool(self.post_urls) == bool(self.get_urls):
            raise OptionError("say where to send messages, either with --post or with --get")
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise OptionError(f"{url!r} is no URL; write http://HOST/PATH or https://HOST/PATH")
        for url in self.get_urls:
            if url.count("%s") != 1:
                raise OptionError(f"--get={url} needs %s once, where the message is to stand")
        if not self.content_type:
            raise OptionError("--content-type needs a value")
        if self.content_type != DEFAULT_CONTENT_TYPE and not self.post_urls:
            raise OptionError("--content-type goes with --post: a GET has no body")
        if not 0 <= self.sample <= 1:
            raise OptionError(f"--sample={self.sample:g} must be from 0 to 1")
        _ = self.header_fields

    @property
    def urls(self) -> tuple[str, ...]:
        """Where messages go."""
        return tuple(dict.fromkeys(self.post_urls or self.get_urls))

    @property
    def header_fields(self) -> dict[str, str]:
        """What ``--header`` says. Raises OptionError."""
        fields = {}
        for header in self.headers:
            name, _, value = map(str.strip, header.partition(":"))
            if not name or not value or not name.isascii() or not header.isprintable():
                raise OptionError(f"--header={header!r} is none; write NAME:VALUE")
            fields[name] = value
        return fields
