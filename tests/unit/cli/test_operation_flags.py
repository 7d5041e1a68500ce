"""Flags of operations whose clients and commands have other parameters than the request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from martlet.cli.operation_flags import OperationOptions, with_flags_of
from martlet.options.checks import parse_time
from martlet.options.flag import OptionError
from martlet.schema.access import OPERATORS
from martlet.schema.kinds import Number, TopicName
from martlet.schema.operation import Operation, OperationAnswer, OperationRequest, operation
from martlet.schema.read import checked


class Paint(OperationRequest, kw_only=True):
    """What to paint.

    topic: the topic
    shade: how dark
    """

    topic: TopicName
    shade: Number


class PaintDark(OperationRequest, kw_only=True):
    """The parameters.

    topic: the topic
    dark: at its darkest
    """

    topic: TopicName
    dark: bool = False

    @property
    def shade(self) -> int:
        """A field of `Paint`."""
        return 9 if self.dark else 1


class ListPainted(OperationRequest):
    """Which to list.

    topic: the topic (default: all)
    """

    topic: TopicName = ""


LIST = operation("paint.list", ListPainted, OperationAnswer, OPERATORS, "List them.")
PAINT = Operation("paint.paint", Paint, OperationAnswer, OPERATORS, "Paint it.", PaintDark)


@with_flags_of(list=LIST, paint=PAINT)
@dataclass(frozen=True, kw_only=True)
class PaintOptions(OperationOptions):
    """The options of a command."""


def options(**values: Any) -> Any:
    kind: Any = PaintOptions
    return kind(nsqd_http_addresses=("127.0.0.1:1",), **values)


def test_flags_are_the_parameters_and_make_the_request() -> None:
    assert PaintOptions.flags().keys() >= {"topic", "dark"}
    assert "shade" not in PaintOptions.flags()
    made = options(action="paint", topic="t", dark=True).request(PaintDark)
    assert checked(Paint, made) == {"topic": "t", "shade": 9}


@pytest.mark.parametrize("values", [{}, {"topic": ""}])
def test_a_required_field_is_a_flag_that_its_action_misses(values: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="the argument --topic is missing"):
        options(action="paint", **values)


@pytest.mark.parametrize("values", [{}, {"topic": ""}])
def test_a_flag_at_its_default_leaves_the_field_out(values: dict[str, str]) -> None:
    assert checked(ListPainted, options(action="list", **values).request(ListPainted)) == {}


@pytest.mark.parametrize("text", ["1" * 400, "9" * 5000])
def test_a_time_that_no_clock_reaches_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=f"^--since={text} is no time"):
        parse_time("since", text, 0)
