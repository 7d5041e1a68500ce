"""The options of ``martlet topic configure`` and ``martlet channel configure``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.door import ChannelOptions, TopicOptions


@dataclass(frozen=True, kw_only=True)
class TopicConfigureOptions(TopicOptions):
    """What ``martlet topic configure`` is started with."""


@dataclass(frozen=True, kw_only=True)
class ChannelConfigureOptions(ChannelOptions):
    """What ``martlet channel configure`` is started with."""
