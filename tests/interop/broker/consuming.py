"""Consumers that take some messages, or only subscribe."""

from __future__ import annotations

from martlet.client import Consumer, PullConsumer


async def take(consumer: Consumer | PullConsumer, count: int) -> list[bytes]:
    """Finish the next messages; their bodies."""
    bodies = []
    async for message in consumer:
        bodies.append(bytes(message.body))
        message.finish()
        if len(bodies) == count:
            break
    return bodies


async def visit(consumer: Consumer | PullConsumer) -> None:
    """Subscribe, and leave again."""
    async with consumer:
        pass
