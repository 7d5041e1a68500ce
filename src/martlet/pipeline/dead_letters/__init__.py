"""The dead-letter job: group dead letters by their errors; redrive or drop them by a condition.

It may import the client, Spark's source and the log. Start reading with
`martlet.pipeline.dead_letters.dead_letters`.
"""

from martlet.pipeline.dead_letters.dead_letters import JOB, Grouped, dead_letters
from martlet.pipeline.dead_letters.options import DeadLetterJobOptions

__all__ = ["JOB", "DeadLetterJobOptions", "Grouped", "dead_letters"]
