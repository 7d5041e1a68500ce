"""The options of ``martlet pipeline audit``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, option
from martlet.pipeline.options import JobOptions


@dataclass(frozen=True, kw_only=True)
class AuditOptions(JobOptions):
    """The logs to audit, and the use of the result."""

    data_paths: tuple[str, ...] = option(
        (),
        "the data folder of a broker, stopped or running, which every worker must see at that"
        " path; may be given several times",
        name="data-path",
        section="audit",
    )
    topics: tuple[str, ...] = option(
        (), "audit only this topic; may be given several times", name="topic"
    )
    out: str = option("", "folder for audit.json and audit.html, made if there is none")
    json: bool = option(False, "print JSON instead of a table")
    fail_on_doubled: bool = option(
        False, "end with 3 also where nothing is lost, but messages are stored twice"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data_paths:
            self.require_brokers(", or data folders with --data-path=DIR")
        require_names("topic", self.topics)
        if any(not path for path in self.data_paths):
            raise OptionError("--data-path is empty: name a broker's data folder")
