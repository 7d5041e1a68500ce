"""Poll for what a test gets no event of."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], limit_s: float = 100) -> None:
    """Poll until the condition holds.

    Raises:
        TimeoutError: it did not within the limit.
    """
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110, many things change it
            await asyncio.sleep(0.005)
