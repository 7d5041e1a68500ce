"""Handlers of requests that processes run; so they are at the top of a module."""

from martlet.client import MessageView


def shout(message: MessageView) -> bytes:
    """Reply in capitals."""
    if message.body == b"fail":
        raise ValueError("not this one")
    return message.body.upper()
