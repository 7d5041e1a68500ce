"""The settings of a topic or a channel, more queues for a topic, and the replay of a channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from martlet.broker.policy import (
    BadPolicy,
    ChannelPolicy,
    Policy,
    TopicPolicy,
    read_words,
    value_text,
)
from martlet.client.admin import Answers, ReplayResult, TopicDescription
from martlet.console.actions import Action, Preview, silent, subject, with_failures
from martlet.console.inputs import ActionRefused, Inputs, inputs_of
from martlet.console.site import SITE
from martlet.schema.topics import MAX_QUEUES
from martlet.text import counted

_MAX_LINES = 50
_MAX_WHY = 1000
"""A refusal names the value, which may be long."""
_TO = {
    "beginning": "the first stored message",
    "time": "a time",
    "offset": "an offset",
}


@dataclass(frozen=True)
class Setting:
    """A field of a policy."""

    name: str
    help: str
    """As of the policy."""
    choices: tuple[str, ...]
    """Of words; empty for other values."""
    shown: str
    """Its value as it is typed, empty for the default."""
    values: Mapping[str, str]
    """The value at each broker, where they differ."""


async def settings(request: web.Request) -> web.StreamResponse:
    """``/settings``: of a topic, or of its channel."""
    site = request.app[SITE]
    inputs = await inputs_of(request)
    topic, channel = inputs.name("topic"), inputs.name("channel", optional=True)
    answers = await inputs.admin.topics.describe(topic)
    policies = {url: _policy(described, channel) for url, described in answers.values.items()}
    present = {url: policy for url, policy in policies.items() if policy is not None}
    kind: Policy = ChannelPolicy() if channel else TopicPolicy()
    return site.page(
        request,
        "settings.html",
        {
            "topic": topic,
            "channel": channel,
            "settings": _settings(kind, present),
            "silent": [url for url, policy in policies.items() if policy is None],
            "queues": {url: len(described.queues) for url, described in answers.values.items()},
            "max_queues": MAX_QUEUES,
            "targets": _TO,
            "failures": list(answers.failures.values()),
        },
    )


def _policy(described: TopicDescription, channel: str) -> Mapping[str, Any] | None:
    """Return a policy; None where the broker has no such channel."""
    return described.channel_policies.get(channel) if channel else described.policy


def _settings(kind: Policy, policies: Mapping[str, Mapping[str, Any]]) -> list[Setting]:
    settings = []
    for field in kind.settable():
        values = {
            url: value_text(policy[field.name]) if field.name in policy else ""
            for url, policy in policies.items()
        }
        differ = len(set(values.values())) > 1
        settings.append(
            Setting(
                field.name,
                field.metadata["help"],
                field.metadata.get("choices", ()),
                next(iter(values.values()), ""),
                values if differ else {},
            )
        )
    return settings


def _changes(inputs: Inputs) -> dict[str, object]:
    """Return the fields of the policy that a form changes, as a call takes them."""
    kind: Policy = ChannelPolicy() if inputs.text("channel") else TopicPolicy()
    words = []
    for field in kind.settable():
        value = inputs.text(field.name)
        if field.name in inputs.fields and value != inputs.text(f"was_{field.name}"):
            words.append(f"{field.name}={value or 'default'}")
    try:
        return read_words(kind, words)
    except BadPolicy as error:
        why = str(error)
        raise ActionRefused(why if len(why) <= _MAX_WHY else f"{why[:_MAX_WHY]}...") from None


def _subject(inputs: Inputs) -> str:
    return subject(inputs.name("topic"), inputs.name("channel", optional=True))


async def _preview_configure(inputs: Inputs) -> Preview:
    changes = _changes(inputs)
    where = inputs.broker.partition("://")[2] or "all brokers with the topic"
    lines = [
        f"{name}: {inputs.text(f'was_{name}') or 'default'} becomes"
        f" {'default' if value is None else value_text(value)}."
        for name, value in changes.items()
    ]
    return Preview(
        title=f"Change settings of {_subject(inputs)}",
        button=f"Change {counted(len(changes), 'setting')} at {where}",
        lines=[*lines, "They apply at once, and after a restart."] if lines else [],
        is_possible=bool(changes),
    )


async def _configure(inputs: Inputs) -> str:
    changes: Any = _changes(inputs)
    if not changes:
        raise ActionRefused("nothing was changed")
    topic, channel = inputs.name("topic"), inputs.name("channel", optional=True)
    admin = inputs.admin
    answers = await (
        admin.channels.configure(topic, channel, **changes)
        if channel
        else admin.topics.configure(topic, **changes)
    )
    names = ", ".join(changes)
    count = counted(len(answers.values), "broker")
    verb = "was" if len(changes) == 1 else "were"
    return with_failures(f"{names} of {_subject(inputs)} {verb} changed at {count}", answers)


# queues


async def _preview_queues(inputs: Inputs) -> Preview:
    topic, count_ = inputs.name("topic"), _queues(inputs)
    answers = await inputs.admin.topics.describe(topic)
    lines = [
        f"{url.partition('://')[2]} has {counted(len(described.queues), 'queue')} now."
        for url, described in sorted(answers.values.items())
    ]
    less = [described for described in answers.values.values() if len(described.queues) < count_]
    lines.append("A queue is never removed. Keys may lead to other queues than before.")
    return Preview(
        title=f"Add queues to topic {topic}",
        button=f"Have {counted(count_, 'queue')} at {counted(len(answers.values), 'broker')}",
        lines=[*lines, *silent(answers)],
        is_possible=bool(less),
    )


def _queues(inputs: Inputs) -> int:
    count = inputs.number("queues")
    if not 1 <= count <= MAX_QUEUES:
        raise ActionRefused(f"a topic has from 1 to {MAX_QUEUES} queues, and not {count}")
    return count


async def _add_queues(inputs: Inputs) -> str:
    topic, count_ = inputs.name("topic"), _queues(inputs)
    having = (await inputs.admin.topics.describe(topic)).values
    # Others do not get the topic.
    answers = await inputs.site.admin.at(*having).topics.create(topic, count_)
    count = counted(len(answers.values), "broker")
    return with_failures(f"Topic {topic} has {counted(count_, 'queue')} at {count}", answers)


# replay


@dataclass(frozen=True)
class ReplayFrom:
    """Where a replay begins in a queue."""

    broker: str
    queue: int
    offset: int
    end_offset: int
    """The first message that is delivered again, and the end of the queue."""
    is_gone: bool = False
    """Whether it cannot be, since messages from there on are no longer stored."""


async def _starts(inputs: Inputs) -> tuple[list[ReplayFrom], list[str]]:
    """Return where a replay would begin, and what went wrong."""
    topic, to = inputs.name("topic"), inputs.text("to")
    if to not in _TO:
        raise ActionRefused("say where to: the first message, a time or an offset")
    answers = await inputs.admin.topics.describe(topic)
    only_queue = inputs.number("queue") if inputs.text("queue") else None
    starts = []
    for url, described in sorted(answers.values.items()):
        for queue in described.queues:
            if only_queue not in (None, queue.queue):
                continue
            offset, is_gone = queue.start_offset, False
            if to == "time":
                time_ms = inputs.time_ns("time") // 1_000_000
                admin = inputs.site.admin.at(url)
                position = await admin.messages.offset_at(topic, time_ms, queue=queue.queue)
                offset, is_gone = position.values[url].offset, position.values[url].is_gone
            elif to == "offset":
                offset = inputs.number("offset")
                is_gone = not queue.start_offset <= offset <= queue.end_offset
            starts.append(ReplayFrom(url, queue.queue, offset, queue.end_offset, is_gone))
    if to == "offset" and len(starts) > 1:
        raise ActionRefused(
            "each queue of each broker has offsets of its own: choose one queue of one broker, or"
            " a time"
        )
    return starts, silent(answers)


async def _preview_replay(inputs: Inputs) -> Preview:
    topic, channel = inputs.name("topic"), inputs.name("channel")
    starts, errors = await _starts(inputs)
    rows = [
        f"Queue {start.queue} at {start.broker.partition('://')[2]}: "
        + (
            f"not from offset {start.offset:,}, where messages are not stored."
            if start.is_gone
            else f"{counted(start.end_offset - start.offset, 'message', form=',')} from offset"
            f" {start.offset:,} on."
        )
        for start in starts
    ]
    lines = rows[:_MAX_LINES]
    if len(rows) > len(lines):
        lines.append(f"{len(rows) - len(lines):,} more queues.")
    lines.append(
        "All messages from there on are delivered, finished or not, with attempts from 1; those in"
        " flight are taken from their consumers."
    )
    if any(start.is_gone for start in starts):
        lines.append("Choose a later position: what is no longer stored cannot be delivered.")
    fields = {}
    if inputs.text("to") == "time":
        fields["time"] = f"{inputs.time_ns('time') / 1e9:.3f}"
    count = sum(start.end_offset - start.offset for start in starts if not start.is_gone)
    some = counted(count, "message", form=",")
    return Preview(
        title=f"Replay channel {channel} of {topic}",
        button=f"Deliver {some} to {channel}" + ("" if inputs.flag("new") else " again"),
        lines=[*lines, *errors],
        fields=fields,
        is_possible=bool(starts) and not any(start.is_gone for start in starts),
    )


async def _replay(inputs: Inputs) -> str:
    topic, channel, to = inputs.name("topic"), inputs.name("channel"), inputs.text("to")
    starts, _ = await _starts(inputs)
    if not starts:
        raise ActionRefused("there is no such queue")
    queue = inputs.number("queue") if inputs.text("queue") else None
    admin = inputs.site.admin.at(starts[0].broker) if to == "offset" else inputs.admin
    answers: Answers[ReplayResult] = await admin.channels.replay(
        topic,
        channel,
        beginning=to == "beginning",
        to_time_ns=inputs.time_ns("time") if to == "time" else None,
        to_offset=inputs.number("offset") if to == "offset" else None,
        queue=starts[0].queue if to == "offset" else queue,
        new_channel=inputs.flag("new"),
    )
    some = counted(answers.total(lambda replay: replay.message_count), "message", form=",")
    return with_failures(f"{some} of {topic} are delivered to channel {channel}", answers)


ACTIONS = {
    "configure": Action(_preview_configure, _configure),
    "add_queues": Action(_preview_queues, _add_queues),
    "replay_channel": Action(_preview_replay, _replay),
}
