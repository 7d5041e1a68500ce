"""Replay: a channel set back on each broker, or a new one made that begins in the past."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from martlet.options.replay import ReplayOptions
from martlet.plural import counted
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer


class RewindTool:
    """Sets a channel back.

    Args:
        options: as the flags give them.
        clock: nanoseconds since 1970.
    """

    def __init__(self, options: ReplayOptions, clock: Callable[[], int] = time.time_ns) -> None:
        self._options = options
        self._clock = clock

    async def run(self) -> list[tuple[str, dict[str, Any] | NoHttpAnswer]]:
        """Do it on each broker; what each of them answered.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        options = self._options
        arguments = {
            "topic": options.topic,
            "channel": options.channel,
            "new": "true" if options.new_channel else "false",
        }
        if options.queue >= 0:
            arguments["queue"] = str(options.queue)
        if options.to_offset >= 0:
            arguments["offset"] = str(options.to_offset)
        elif options.to_time:
            arguments["timestamp_ns"] = str(options.time_ns(self._clock()))
        else:
            arguments["beginning"] = "true"
        async with BrokerHttpClients(options) as doors:
            urls = await doors.brokers(options.topic)

            async def ask(url: str) -> dict[str, Any] | NoHttpAnswer:
                try:
                    answer: dict[str, Any] = await doors.post(url, "/channel/replay", arguments)
                    return answer
                except NoHttpAnswer as error:
                    return error

            answers = await asyncio.gather(*map(ask, urls))
        return list(zip(urls, answers, strict=True))


def describe(options: ReplayOptions, answer: dict[str, Any]) -> str:
    """A line about what a broker has done."""
    what = "begins at" if options.new_channel else "is set back to"
    name = f"channel {options.channel} of topic {options.topic} {what}"
    if "queues" not in answer:
        count = answer["end_offset"] - answer["offset"]
        return f"{name} offset {answer['offset']}; {counted(count, 'message')} from there on"
    queues = answer["queues"]
    count = sum(each["end_offset"] - each["offset"] for each in queues)
    places = ", ".join(f"{each['offset']} of queue {each['queue']}" for each in queues)
    return f"{name} offset {places}; {counted(count, 'message')} from there on"
