"""Dead letters at scale: grouped by why they died, brought back or dropped by a condition."""

from martlet.pipeline.dead_letters.dead_letters import JOB, Grouped, dead_letters
from martlet.pipeline.dead_letters.options import DeadLetterJobOptions

__all__ = ["JOB", "DeadLetterJobOptions", "Grouped", "dead_letters"]
