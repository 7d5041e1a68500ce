"""The replay job: send earlier messages of a topic or an archive to a topic, exactly once.

It may import the client, Spark's source and sink and the log. Start reading with
`martlet.pipeline.replay.replay`.
"""

from martlet.pipeline.replay.options import ReplayJobOptions
from martlet.pipeline.replay.replay import JOB, Replayed, replay

__all__ = ["JOB", "ReplayJobOptions", "Replayed", "replay"]
