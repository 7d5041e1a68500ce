"""Operations: changes that brokers can count before they are done.

As an action of `martlet.admin.actions` each has a confirmation and a line of audit. Its preview
asks brokers what it would change, so that the page says so, and the fields of the form are those
that the preview was of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from martlet.admin.asked import Asked
from martlet.admin.guard import user_of
from martlet.client.admin import AdminError, Answers

TYPED_FROM = 1000
"""From more messages on, the name must be typed before they are removed."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What an operation would do.

    Attributes:
        title: the question, without its mark.
        button: what the button does, and to how many.
        lines: what else the user should know.
        fields: those of the form that are set, whatever the address had.
        typed: what must be typed; empty for nothing.
        is_possible: whether there is anything to do.
        obstacle: what has to be done before; empty for nothing.
    """

    title: str
    button: str
    lines: Sequence[str] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    typed: str = ""
    is_possible: bool = True
    obstacle: str = ""


@dataclass(frozen=True)
class PreviewedChange:
    """A change.

    Attributes:
        preview: tells what it would do.
        do: does it, and returns a sentence about it.
    """

    preview: Callable[[Asked], Awaitable[Preview]]
    do: Callable[[Asked], Awaitable[str]]


async def perform(request: web.Request, name: str, operation: PreviewedChange, asked: Asked) -> str:
    """Do an operation, and keep it in the audit; return a sentence about it.

    Raises:
        AdminError: no broker did it; the audit has it.
        ActionRefused: a field is wrong.
    """
    audit, user = asked.site.audit, user_of(request)
    channel = asked.text("channel") or asked.text("group")
    topic = asked.text("topic") or asked.text("dead_letter_topic")
    where = {"topic": topic, "channel": channel, "node": asked.broker}
    try:
        text = await operation.do(asked)
    except AdminError as error:
        audit.failed(request, user, name, str(error), **where)
        raise
    audit.done(request, user, name, text, **where)
    return text


def with_failures(text: str, answers: Answers[object]) -> str:
    """Return a sentence, with the brokers that failed."""
    failures = "; ".join(map(str, answers.failures.values()))
    return f"{text}, but not everywhere: {failures}" if failures else text


def silent(answers: Answers[object]) -> list[str]:
    """Return a line about each broker that did not say what would happen."""
    return [f"Not counted: {error}" for error in answers.failures.values()]
