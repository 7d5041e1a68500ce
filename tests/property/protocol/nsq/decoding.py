"""Decode all bytes of a client, in any pieces: commands, and perhaps an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from martlet.names import is_valid_name
from martlet.protocol.nsq.decoder import Decoder
from martlet.protocol.nsq.v2 import (
    Close,
    Command,
    Finish,
    FinishRun,
    LineTooLong,
    ParserState,
    ProtocolError,
    ProtocolLimits,
    PublishCommand,
    Subscribe,
)

LIMITS = ProtocolLimits(
    max_rdy_count=2500, max_msg_size=200, max_body_size=1000, max_req_timeout_ms=60_000
)


def flat(command: Command) -> Iterator[object]:
    """A command as its single parts, whatever way it came."""
    if isinstance(command, FinishRun):
        for number in command.ids.tolist():
            yield Finish(b"%016x" % number)
    elif isinstance(command, Finish):
        # A run is numbers, so upper and lower case are the same.
        yield Finish(command.id.lower())
    elif isinstance(command, PublishCommand):
        some = [bytes(body) for body in command.bodies]
        if command.verb == "PUB":
            assert command.commands == len(some)
            for body in some:
                yield ("PUB", command.topic, [body], None)
        else:
            assert command.commands == 1
            yield (command.verb, command.topic, some, command.delay_ms)
    else:
        yield command


def decode_all(
    pieces: Iterable[bytes], state: ParserState, limits: ProtocolLimits = LIMITS
) -> list[object]:
    """All commands of bytes that come in pieces, kept as a connection keeps them.

    Then what of the bytes was left, and the error that ends the connection, or that a client gets
    who hangs up there.
    """
    decoder = Decoder(limits, is_valid_name)
    decoder.state = state
    kept = bytearray()
    commands: list[object] = []
    ending: ProtocolError | LineTooLong | None = None
    for piece in pieces:
        kept += piece
        at = 0
        while at < len(kept):
            lone = decoder.lone_publish(kept, len(kept)) if at == 0 else None
            try:
                decoded = decoder.decode(kept, at, len(kept))
            except (ProtocolError, LineTooLong) as error:
                ending = error
                break
            if decoded is None:
                assert lone is None
                assert not 0 < decoder.wanted_bytes <= len(kept) - at
                break
            command, behind = decoded
            assert at < behind <= len(kept)
            bodies = list(flat(command))
            if lone is not None:
                topic, start = lone
                assert bodies == [("PUB", topic, [bytes(kept[start:])], None)]
                assert behind == len(kept)
            commands += bodies
            if isinstance(command, Subscribe):
                decoder.state = ParserState.SUBSCRIBED
            elif isinstance(command, Close):
                decoder.state = ParserState.CLOSING
            at = behind
            del command, decoded
        if ending is not None:
            break
        kept = kept[at:]
    if ending is None and kept:
        ending = decoder.cut_off(kept, len(kept))
        commands.append(bytes(kept))
    if isinstance(ending, ProtocolError):
        assert ending.frame()[8:].startswith(b"E_")
    return commands if ending is None else [*commands, type(ending), str(ending)]


def one_by_one(data: bytes) -> list[bytes]:
    """Each byte by itself."""
    return [data[n : n + 1] for n in range(len(data))]
