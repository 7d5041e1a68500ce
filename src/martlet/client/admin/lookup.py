"""Lookup daemons: what they know that no broker has."""

from __future__ import annotations

import asyncio
from typing import Any

from martlet.client.admin.answers import Answers
from martlet.client.admin.noun import Noun, place


class LookupAdmin(Noun):
    """The lookup daemons: `Admin.lookup`. Without any, all is empty."""

    async def create_topic(self, topic: str) -> Answers[None]:
        """Register a topic that no broker needs to have yet, so that consumers find no error.

        Raises AdminError: no daemon did it.
        """
        http = self._http
        return await http.each(
            http.daemons, lambda url: http.post(url, "/topic/create", place(topic))
        )

    async def inactive_topics(self) -> dict[str, list[str]]:
        """Return the topics that daemons know and no broker has, each with its channels.

        Raises AdminError: no daemon answered.
        """
        http = self._http
        if not http.daemons:
            return {}
        known = await http.each(http.daemons, lambda url: http.get(url, "/topics", {}, _topics))
        nodes = await http.each(http.daemons, lambda url: http.get(url, "/nodes", {}, _registered))
        inactive = sorted(set(known.joined()) - set(nodes.joined()))
        channels = await asyncio.gather(*map(self._channels, inactive))
        return dict(zip(inactive, channels, strict=True))

    async def _channels(self, topic: str) -> list[str]:
        http = self._http
        found = await http.each(
            http.daemons, lambda url: http.get(url, "/channels", {"topic": topic}, _channels)
        )
        return sorted(set(found.joined()))


def _topics(answer: Any) -> tuple[str, ...]:
    return tuple(map(str, answer["topics"] or ()))


def _channels(answer: Any) -> tuple[str, ...]:
    return tuple(map(str, answer["channels"] or ()))


def _registered(answer: Any) -> tuple[str, ...]:
    return tuple(str(topic) for each in answer["producers"] or () for topic in each["topics"] or ())
