"""Properties in a frame of their own, before their messages."""

from __future__ import annotations

from martlet.properties.block import Block
from martlet.protocol.nsq.frames import BadFrame, Carried, FrameSplitter
from martlet.protocol.nsq.message_run import MessageRun


def carry(run: MessageRun, block: Block, first: int) -> bool:
    """Attach properties to a run at a message of the block; return whether none are left."""
    start, stop = block.numbers.searchsorted((first, first + run.count)).tolist()
    if start < stop:
        indexes = (block.numbers[start:stop] - first).tolist()
        run.properties = {index: bytes(block.entry(at)) for at, index in enumerate(indexes, start)}
    return bool(stop == len(block))


def cut_messages(data: bytes | memoryview) -> MessageRun | None:
    """Decode the messages of an answer's bytes, with their properties; None for no messages.

    Raises:
        BadFrame: the bytes are not frames of messages and properties. BadProperties: the properties
        are malformed.
    """
    splitter = FrameSplitter.over(data)
    runs: list[MessageRun] = []
    block: Block | None = None
    carried_from = 0
    for piece in splitter.received(len(data)):
        if isinstance(piece, Carried):
            block, carried_from = Block(piece.data), 0
        elif isinstance(piece, MessageRun):
            if block is not None and carry(piece, block, carried_from):
                block = None
            carried_from += piece.count
            runs.append(piece)
        else:
            raise BadFrame(f"{type(piece).__name__} among messages")
    if splitter.pending_bytes:
        raise BadFrame("messages that are cut in the middle of a frame")
    return MessageRun.joined(runs) if runs else None
