"""The live report: aggregates of topics over time windows, updated while messages come in.

It may import the client, Spark's source and the log. Start reading with
`martlet.pipeline.report.report`.
"""

from martlet.pipeline.report.description import BadDescription, Description, Figure, of_sql, parse
from martlet.pipeline.report.options import LiveReportOptions
from martlet.pipeline.report.report import JOB, report

__all__ = [
    "JOB",
    "BadDescription",
    "Description",
    "Figure",
    "LiveReportOptions",
    "of_sql",
    "parse",
    "report",
]
