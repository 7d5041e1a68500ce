"""The options of ``martlet pipeline dead-letters``."""

from __future__ import annotations

from dataclasses import dataclass

from martlet.options.checks import require_names
from martlet.options.flag import OptionError, option
from martlet.pipeline.options import JobOptions

_QUOTES = "'\"`"
ACTIONS = ("list", "redrive", "drop")


@dataclass(frozen=True, kw_only=True)
class DeadLetterJobOptions(JobOptions):
    """The dead letters to select, and the action on them."""

    action: str = option(
        "list",
        "list: group them; redrive: send them back to the channels that gave them up; drop: delete"
        " them",
        section="dead letters",
    )
    where: str | None = option(
        None,
        "a condition in Spark SQL, like reason = 'max_attempts' AND last_error LIKE '%smtp%'",
    )
    all: bool = option(False, "redrive or drop all dead letters")
    by: str = option("reason,topic,channel,error", "the columns or expressions to group by")
    json_schema: str = option(
        "",
        "fields of JSON messages, for --where and --by: 'customer STRING, amount DOUBLE'",
    )
    to_topic: str = option("", "redrive: to this topic instead of the original channels")
    dry_run: bool = option(False, "change nothing: show the selected dead letters, grouped")
    out: str = option("", "also write the dead letters, one row each, to this Parquet folder")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_brokers()
        if self.action not in ACTIONS:
            raise OptionError(f"--action={self.action} is none of {', '.join(ACTIONS)}")
        if self.where is not None and not self.where.strip():
            raise OptionError("--where is empty: leave it out, or write a condition")
        if self.action == "list":
            if self.all or self.dry_run or self.to_topic:
                raise OptionError("--all, --dry-run and --to-topic are for redrive and drop")
        elif (self.where is not None) == self.all:
            raise OptionError(f"say which to {self.action}: either --where=CONDITION or --all")
        if self.to_topic:
            if self.action == "drop":
                raise OptionError("--to-topic is for redrive")
            require_names("to-topic", [self.to_topic])
        if not any(self.expressions):
            raise OptionError("--by is empty: reason,topic,channel,error")

    @property
    def expressions(self) -> list[str]:
        """The expressions to group by, split at commas outside of parentheses and quotes."""
        expressions, depth, quote = [""], 0, ""
        for character in self.by:
            if quote or character in _QUOTES:
                quote = "" if character == quote else quote or character
            else:
                depth += (character == "(") - (character == ")")
            if character == "," and not depth and not quote:
                expressions.append("")
            else:
                expressions[-1] += character
        return [expression.strip() for expression in expressions if expression.strip()]
