"""The replay: messages of a topic's past, or of an archive, sent to a topic, each exactly once."""

from martlet.pipeline.replay.options import ReplayJobOptions
from martlet.pipeline.replay.replay import JOB, Replayed, replay

__all__ = ["JOB", "ReplayJobOptions", "Replayed", "replay"]
