"""Policies of topics and channels, set on each broker that is named."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from martlet.options.configure import ChannelConfigureOptions, TopicConfigureOptions
from martlet.tools.door import BrokerHttpClients, NoHttpAnswer
from martlet.tools.manage import with_way_out

Options = TopicConfigureOptions | ChannelConfigureOptions


class Configuration:
    """Sets some fields of a policy.

    Args:
        options: which topic or channel, on which brokers.
        changes: the fields to set; None for the default. None at all: nothing is set.
    """

    def __init__(self, options: Options, changes: Mapping[str, object]) -> None:
        self._options = options
        self._changes = dict(changes)

    async def run(self) -> list[tuple[str, dict[str, Any] | NoHttpAnswer]]:
        """Do it on each broker; the policy that it has there then.

        Raises:
            NoHttpAnswer: no broker was found.
        """
        options = self._options
        names = {"topic": options.topic}
        method = "topic.configure"
        if isinstance(options, ChannelConfigureOptions):
            names["channel"] = options.channel
            method = "channel.configure"
        fields: dict[str, Any] = {**names, "policy": self._changes}
        async with BrokerHttpClients(options) as doors:
            urls = await doors.brokers(options.topic)

            async def ask(url: str) -> dict[str, Any] | NoHttpAnswer:
                try:
                    policy: dict[str, Any] = (await doors.call(url, method, fields))["policy"]
                    return policy
                except NoHttpAnswer as error:
                    return with_way_out(error, url, names)

            return list(zip(urls, await asyncio.gather(*map(ask, urls)), strict=True))
