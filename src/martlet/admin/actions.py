"""Actions: what a user can do, each with its confirmation and its line of audit.

An action's preview says what it would change, and the form that confirms it has the fields that the
preview was of. Actions on topics and channels are here, under nsqadmin's names where nsqadmin has
them; `martlet.admin.pages` has the others, and `martlet.admin.forms` the pages around all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from multidict import MultiDict

from martlet.admin.cluster import ChannelTotals
from martlet.admin.guard import user_of
from martlet.admin.inputs import MAX_CHOSEN, ActionRefused, Inputs
from martlet.client.admin import Admin, AdminError, Answers
from martlet.names import NAME_RULE, is_valid_name
from martlet.properties.model import MAX_PRIORITY
from martlet.text import counted, parse_duration

TYPED_FROM = 1000
"""From more messages on, the name must be typed before they are removed."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What an action would do.

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
class Action:
    """What can be done.

    Attributes:
        do: does it, and returns a sentence about it.
        split: checks what was chosen, and returns the inputs of each part, done one by one.
        is_confirmed: whether it is asked for first, and may want a name typed.
        counts: whether the preview counts messages of the view, which must be the newest.
        deletes: whether it deletes the topic or channel, so that its page is gone afterwards.
        is_in_place: whether each broker still has the same topics and channels afterwards.
    """

    preview: Callable[[Inputs], Awaitable[Preview]]
    do: Callable[[Inputs], Awaitable[str]]
    split: Callable[[Inputs], list[Inputs]] = lambda inputs: [inputs]
    is_confirmed: bool = True
    counts: bool = False
    deletes: bool = False
    is_in_place: bool = False


async def perform(request: web.Request, name: str, action: Action, parts: Sequence[Inputs]) -> str:
    """Do an action in each part, whatever comes of the others; return a sentence about it.

    Args:
        request: of a user who may act.
        name: of the action.
        action: to do; the audit has each part.
        parts: what `Action.split` returned.

    Raises:
        AdminError: no server did any of it.
        ActionRefused: a field is wrong.
    """
    texts, errors = [], []
    for inputs in parts:
        audit, user = inputs.site.audit, user_of(request)
        topic = inputs.text("topic") or inputs.text("dead_letter_topic")
        channel = inputs.text("channel") or inputs.text("group")
        where = {"topic": topic, "channel": channel, "node": inputs.broker}
        try:
            text = await action.do(inputs)
        except AdminError as error:
            audit.failed(request, user, name, str(error), **where)
            errors.append(error)
        else:
            audit.done(request, user, name, text, **where)
            texts.append(text)
    if not texts:
        raise errors[0]
    text = texts[-1]
    if others := len(texts) - 1:
        text += f", and so {'was' if others == 1 else 'were'} {counted(others, 'other topic')}"
    if errors:
        text += f", but {counted(len(errors), 'topic')} failed: {errors[0]}"
    return text


def with_failures(text: str, answers: Answers[Any]) -> str:
    """Return a sentence, with the brokers that failed."""
    failures = "; ".join(map(str, answers.failures.values()))
    return f"{text}, but not everywhere: {failures}" if failures else text


def silent(answers: Answers[object]) -> list[str]:
    """Return a line about each broker that did not say what would happen."""
    return [f"Not counted: {error}" for error in answers.failures.values()]


def subject(topic: str, channel: str) -> str:
    """Return the name of a topic, or of its channel, in a sentence."""
    return f"channel {channel} of {topic}" if channel else f"topic {topic}"


# on topics and channels

Do = Callable[[Admin, Inputs], Awaitable[Answers[Any]]]


@dataclass(frozen=True, kw_only=True)
class TopicChange:
    """A change of topics or of a channel.

    Attributes:
        verb: on buttons, such as ``Empty``.
        done: the sentence afterwards, such as ``{subject} was emptied``.
        of_channel: whether it changes a channel; None if it does where one is named.
        destroys: whether it removes messages; their number is shown before.
        deletes: whether it removes the topic or channel too; its name must be typed.
        at_daemons: whether it is done at the lookup daemons, also where it concerns one broker.
        of_broker: whether it needs a broker.
        is_in_place: whether brokers that the newest view shows without the topic are not asked.
        is_undoable: whether what brokers answer is kept, to be undone.
        note: what the user should know of it.
    """

    verb: str
    done: str
    do: Do
    of_channel: bool | None = False
    destroys: bool = False
    deletes: bool = False
    at_daemons: bool = False
    of_broker: bool = False
    is_in_place: bool = False
    is_undoable: bool = False
    note: str = ""

    def action(self) -> Action:
        """Return it as an action."""
        return Action(
            self._preview,
            self._do,
            self._split,
            is_confirmed=self.destroys or self.of_broker,
            counts=self.destroys,
            deletes=self.deletes,
            is_in_place=self.is_in_place,
        )

    def _split(self, inputs: Inputs) -> list[Inputs]:
        """Return the inputs of each topic that was chosen."""
        fields = inputs.fields
        topics = [fields["topic"]] if fields.get("topic") else fields.getall("topics", [])
        if not topics:
            raise ActionRefused("no topic was chosen: go back and choose some")
        if len(topics) > MAX_CHOSEN:
            raise ActionRefused(f"{len(topics)} topics were chosen; the maximum is {MAX_CHOSEN}")
        channel = "" if self.of_channel is False else fields.get("channel", "")
        for name in (*topics, *([channel] if channel or self.of_channel else [])):
            if not is_valid_name(name):
                raise ActionRefused(
                    f"{name!r} is no name of a topic or channel, which has {NAME_RULE}"
                )
        if not inputs.broker and self.of_broker:
            raise ActionRefused("no broker was named that is to be hidden")
        if self.at_daemons and not inputs.site.options.lookupd_http_addresses:
            raise ActionRefused("this page asks no lookup daemon: see --lookup")
        parts = []
        for topic in dict.fromkeys(topics):
            part = MultiDict(fields)
            part.update(topic=topic, channel=channel)
            parts.append(replace(inputs, fields=part))
        return parts

    async def _do(self, inputs: Inputs) -> str:
        topic, channel = inputs.text("topic"), inputs.text("channel")
        answers = await self.do(self._admin(inputs), inputs)
        broker = inputs.broker.partition("://")[2]
        text = self.done.format(subject=subject(topic, channel), topic=topic, broker=broker)
        servers = _servers(list(answers.values), inputs.site.admin.http.daemons)
        text = with_failures(f"{text[0].upper()}{text[1:]} at {servers}", answers)
        undos = inputs.site.undos
        if self.is_undoable and undos.add(topic, channel, inputs.user, answers.values):
            text += "; it can be undone on the page of the channel"
        return text

    def _admin(self, inputs: Inputs) -> Admin:
        """Return the way to the servers that the change concerns."""
        site = inputs.site
        if inputs.broker and not self.at_daemons:
            return inputs.admin
        view = site.collector.places
        if not self.is_in_place or view is None:
            return site.admin
        lacking = view.lacking(inputs.text("topic"), inputs.text("channel"))
        named = site.admin.http.named_brokers  # Lookup daemons say themselves who has a topic.
        return site.admin.at(*(url for url in named if url not in lacking)) if named else site.admin

    async def _preview(self, inputs: Inputs) -> Preview:
        parts = self._split(inputs)
        topic, channel = parts[0].text("topic"), parts[0].text("channel")
        count = sum(map(self._waiting, parts)) if self.destroys else 0
        if len(parts) > 1:
            what = name = counted(len(parts), "topic")
        else:
            what, name = subject(topic, channel), f"{topic} / {channel}" if channel else topic
        return Preview(
            title=f"{self.verb} {what}",
            button=self._button(parts, what, count),
            lines=self._lines(parts, topic, channel),
            typed=name if self.deletes or count > TYPED_FROM else "",
        )

    def _waiting(self, inputs: Inputs) -> int:
        """Return how many messages it would remove."""
        topic = inputs.view.topics.get(inputs.text("topic"))
        if topic is None:
            return 0
        channels, count = _channels(inputs), 0
        if not inputs.text("channel"):
            channels = channels if self.deletes else []
            count = sum(
                each.depth for url, each in topic.nodes.items() if inputs.broker in ("", url)
            )
        return count + sum(
            each.depth + each.in_flight_count + each.deferred_count
            for channel in channels
            for url, each in channel.nodes.items()
            if inputs.broker in ("", url)
        )

    def _button(self, parts: Sequence[Inputs], what: str, count: int) -> str:
        if parts[0].broker:
            where = parts[0].broker.partition("://")[2]
        else:
            known = parts[0].view.topics
            topics = [known[name] for each in parts if (name := each.text("topic")) in known]
            where = counted(len({url for topic in topics for url in topic.nodes}), "broker")
        if self.at_daemons:
            return f"{self.verb} {what} of {where}"
        if not self.destroys:
            return f"{self.verb} {what} on {where}"
        some = counted(count, "message", form=",")
        return f"{self.verb} {f'{what} with {some}' if self.deletes else some} on {where}"

    def _lines(self, parts: Sequence[Inputs], topic: str, channel: str) -> list[str]:
        lines = [", ".join(each.text("topic") for each in parts)] if len(parts) > 1 else []
        channels = [each for part in parts for each in _channels(part)] if self.destroys else []
        if self.deletes and not channel and channels:
            count = counted(len(channels), "channel")
            lines.append(f"{count} and all policies are deleted, too; consumers are disconnected.")
        if consumers := sum(each.counts.client_count for each in channels):
            verb = "is" if consumers == 1 else "are"
            lines.append(f"{counted(consumers, 'consumer')} {verb} connected.")
        lines += [self.note] if self.note else []
        if missing := ", ".join(each.address for each in parts[0].view.missing):
            lines.append(
                f"Nothing happens at {missing}: no answer, and messages there are not counted."
            )
        return lines


def _channels(inputs: Inputs) -> list[ChannelTotals]:
    """Return the channel, or all of the topic."""
    topic = inputs.view.topics.get(inputs.text("topic"))
    channels = topic.channels.values() if topic else []
    return [each for each in channels if inputs.text("channel") in ("", each.channel)]


def _servers(urls: Sequence[str], daemons: Container[str]) -> str:
    """Return which servers did it: ``127.0.0.1:4151``, ``2 brokers and 1 lookup daemon``."""
    brokers = [url for url in urls if url not in daemons]
    if len(brokers) == len(urls) == 1:
        return brokers[0].partition("://")[2]
    parts = [counted(len(brokers), "broker")] if brokers else []
    if len(urls) > len(brokers):
        parts.append(counted(len(urls) - len(brokers), "lookup daemon"))
    return " and ".join(parts)


async def _create_topic(admin: Admin, inputs: Inputs) -> Answers[Any]:
    queues = inputs.text("queues")
    if queues and not queues.isdecimal():
        raise ActionRefused(f"{queues!r} is no number of queues: give one from 1 to 128")
    return await admin.topics.create(inputs.text("topic"), int(queues) if queues else None)


async def _register(admin: Admin, inputs: Inputs) -> Answers[Any]:
    topic, channel = inputs.text("topic"), inputs.text("channel")
    answers = await admin.lookup.create_topic(topic)
    return await admin.channels.create(topic, channel) if channel else answers


async def _tombstone(admin: Admin, inputs: Inputs) -> Answers[Any]:
    return await admin.nodes.tombstone(inputs.text("topic"), inputs.broker.partition("://")[2])


async def _publish(admin: Admin, inputs: Inputs) -> Answers[Any]:
    form = inputs.fields
    if not form.get("body"):
        raise ActionRefused("a message has a body of at least one byte")
    headers = {}
    for line in form.get("headers", "").splitlines():
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise ActionRefused(f"a header is written name: value, and this line is {line!r}")
        if colon:
            headers[name.strip()] = value.strip()
    defer = inputs.text("defer")
    try:
        defer_ns = parse_duration(defer) if defer else 0
    except ValueError as error:
        raise ActionRefused(f"deliver in: {error}") from None
    if defer_ns < 0:
        raise ActionRefused(f"deliver in: {defer} is in the past")
    for text in (form.get("tag", ""), form.get("order_key", ""), *headers, *headers.values()):
        if not text.isprintable():
            raise ActionRefused(f"{text!r} has characters that a property cannot have")
    # A browser ends the lines of a form with CR LF.
    return await admin.topics.publish(
        inputs.text("topic"),
        form.get("body", "").replace("\r\n", "\n").encode(),
        tag=form.get("tag") or None,
        keys=form.get("keys", "").split(),
        order_key=form.get("order_key") or None,
        headers=headers,
        priority=_priority(form.get("priority", "")),
        defer_ms=defer_ns // 1_000_000,
    )


def _priority(text: str) -> int | None:
    if not text:
        return None
    if len(text) != 1 or not text.isdecimal():
        raise ActionRefused(f"the priority {text!r}: it is 0 to {MAX_PRIORITY}")
    return int(text)


def _topic(name: str) -> Do:
    return lambda admin, inputs: getattr(admin.topics, name)(inputs.text("topic"))


def _channel(name: str) -> Do:
    return lambda admin, inputs: getattr(admin.channels, name)(
        inputs.text("topic"), inputs.text("channel")
    )


def _changes(kind: str, call: Callable[[str], Do], **named: Any) -> dict[str, TopicChange]:
    """Return what both topics and channels have."""

    def change(verb: str, done: str, **more: Any) -> TopicChange:
        return TopicChange(
            verb=verb.title(), done=f"{{subject}} was {done}", do=call(verb), **named, **more
        )

    return {
        f"pause_{kind}": change("pause", "paused", is_in_place=True),
        f"unpause_{kind}": change("unpause", "unpaused", is_in_place=True),
        f"empty_{kind}": change("empty", "emptied", destroys=True),
        f"delete_{kind}": change("delete", "deleted", destroys=True, deletes=True),
    }


_CREATED = "{subject} was created"
_CHANGES = {
    **_changes("topic", _topic),
    **_changes("channel", _channel, of_channel=True),
    "create_topic": TopicChange(verb="Create", done=_CREATED, do=_create_topic),
    "create_channel": TopicChange(
        verb="Create", done=_CREATED, do=_channel("create"), of_channel=True
    ),
    "publish_message": TopicChange(
        verb="Publish to", done="A message was published to {topic}", do=_publish
    ),
    "register": TopicChange(
        verb="Create", done=_CREATED, do=_register, of_channel=None, at_daemons=True
    ),
    "tombstone_topic_producer": TopicChange(
        verb="Hide",
        done="{subject} of {broker} was hidden",
        do=_tombstone,
        at_daemons=True,
        of_broker=True,
        note="Lookup daemons do not name this broker to consumers of the topic for a while: 45 s,"
        " unless their --tombstone-lifetime says otherwise. A broker that still has the topic is"
        " named again afterwards.",
    ),
}
_CHANGES["empty_channel"] = replace(
    _CHANGES["empty_channel"],
    is_undoable=True,
    note="What a Martlet broker empties can be put back for a time (--keep-emptied), on the page of"
    " the channel.",
)
TOPIC_ACTIONS: Mapping[str, Action] = {name: each.action() for name, each in _CHANGES.items()}
