"""Actions: what a user can do, each with its confirmation and its line of audit.

A form posts to ``/act`` with the name of the action. An action that destroys something goes through
``/confirm`` first: a page that says what will happen, with numbers that were read for it, and that
wants a name typed where much is at stake. Its form has the fields that the preview was of.

Actions on topics and channels are here, under nsqadmin's names where nsqadmin has them;
`martlet.console.pages` has the others, and the table of all.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from aiohttp import web
from multidict import MultiDict

from martlet.client.admin import Admin, AdminError, Answers
from martlet.console import shown
from martlet.console.cluster import ChannelTotals
from martlet.console.guard import RefusalReason, user_of
from martlet.console.inputs import MAX_CHOSEN, ActionRefused, Form, Inputs, quoted
from martlet.console.site import SITE, Site
from martlet.console.undos import Undo
from martlet.http_connection import body_timer
from martlet.names import NAME_RULE, is_valid_name
from martlet.properties.model import MAX_PRIORITY
from martlet.text import counted, parse_duration

_MAX_NOTICE = 1000
TYPED_FROM = 1000
"""From more messages on, the name must be typed before they are removed."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What an action would do."""

    title: str
    """The question, without its mark."""
    button: str
    """What the button does, and to how many."""
    lines: Sequence[str] = ()
    """What else the user should know."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Those of the form that are set, whatever the address had."""
    typed: str = ""
    """What must be typed; empty for nothing."""
    is_possible: bool = True
    """Whether there is anything to do."""
    obstacle: str = ""
    """What has to be done before; empty for nothing."""


@dataclass(frozen=True)
class Action:
    """What can be done."""

    preview: Callable[[Inputs], Awaitable[Preview]]
    do: Callable[[Inputs], Awaitable[str]]
    """Does it, and returns a sentence about it."""
    split: Callable[[Inputs], list[Inputs]] = lambda inputs: [inputs]
    """Checks what was chosen, and returns the inputs of each target, done one by one."""
    is_confirmed: bool = True
    """Whether it is asked for first, and may want a name typed."""
    counts: bool = False
    """Whether the preview counts messages of the view, which must be the newest."""
    deletes: bool = False
    """Whether it deletes the topic or channel, so that its page is gone afterwards."""
    is_in_place: bool = False
    """Whether each broker still has the same topics and channels afterwards."""


ACTIONS = web.AppKey("actions", Mapping[str, Action])
"""All actions, by the names that forms send."""


async def confirm(request: web.Request) -> web.StreamResponse:
    """``/confirm``: what an action will do, before it is done."""
    site, query = request.app[SITE], request.query
    _check_role(request)
    view = await site.collector.poll_now()
    _, action = _action(request, query)
    preview = await action.preview(Inputs(site, view, query))
    replaced = {*preview.fields, "typed"}
    fields = [field for field in query.items() if field[0] not in replaced]
    return site.page(
        request,
        "confirm.html",
        {
            "title": preview.title,
            "consequences": preview.lines,
            "typed": preview.typed,
            "fields": [*fields, *preview.fields.items()],
            "button": preview.button if preview.is_possible and not preview.obstacle else "",
            "obstacle": preview.obstacle,
            "back": _back(site, query.get("back", "")),
        },
    )


async def act(request: web.Request) -> web.StreamResponse:
    """``/act``: do what a form says, and go back to its page."""
    site = request.app[SITE]
    form = await _form(request)
    _check_role(request)
    name, action = _action(request, form)
    view = site.collector.view
    if action.counts or form.get("broker", "") not in ("", *view.brokers):
        view = await site.collector.poll_now()
    inputs = Inputs(site, view, form, user_of(request).name)
    targets = action.split(inputs)
    if action.is_confirmed:
        preview, typed = await action.preview(inputs), inputs.text("typed")
        if preview.typed and typed != preview.typed:
            raise ActionRefused(
                f"{preview.button}: type {preview.typed!r} to confirm, and not {quoted(typed)}"
            )
    text = await perform(request, name, action, targets)
    site.collector.poll_later(is_in_place=action.is_in_place)
    back = _back(site, form.get("back", ""))
    if action.deletes and urlsplit(back).path.startswith(tuple(map(_page_of, targets))):
        back = site.url(
            "/topics", *([targets[0].text("topic")] if targets[0].text("channel") else [])
        )
    joiner = "&" if "?" in back else "?"
    raise web.HTTPSeeOther(f"{back}{joiner}{urlencode({'notice': text[:_MAX_NOTICE]})}")


def _action(request: web.Request, fields: Form) -> tuple[str, Action]:
    """Return the action that a form names."""
    name, actions = fields.get("action", ""), request.app[ACTIONS]
    if name not in actions:
        raise ActionRefused(f"there is no action {quoted(name)}")
    return name, actions[name]


def is_multipart(request: web.Request) -> bool:
    """Whether a request is a form that is read part by part."""
    return request.path.endswith("/act") and request.content_type.startswith("multipart/")


async def _form(request: web.Request) -> Form:
    try:
        async with body_timer(request):
            form = await request.post()
    except (ValueError, LookupError, AssertionError, RuntimeError) as error:  # by the kind of form
        raise ActionRefused(f"the form cannot be read: {error}") from error
    if not all(isinstance(value, str) for value in form.values()):
        raise ActionRefused("an action takes no files")
    return form  # type: ignore[return-value]


def _check_role(request: web.Request) -> None:
    site, user = request.app[SITE], user_of(request)
    if not user.acts:
        why = "this user may not act: see --admin-user and --read-only"
        site.audit.refused(request, user, RefusalReason.ROLE, why)
        raise web.HTTPForbidden(text=why)


def _page_of(inputs: Inputs) -> str:
    """Return the path of the page of a topic or channel."""
    names = inputs.text("topic"), inputs.text("channel")
    return inputs.site.url("/topics", *filter(None, names))


def _back(site: Site, address: str) -> str:
    """Return the page to go back to: one of this site's, whatever a form says."""
    own = f"{site.prefix}/"
    try:
        parts = urlsplit(address)
    except ValueError:
        return own
    if parts.scheme or parts.netloc or "\\" in address or not parts.path.startswith(own):
        return own
    if parts.path.startswith("//"):
        return own
    query = "&".join(field for field in parts.query.split("&") if not field.startswith("notice="))
    return parts.path + (f"?{query}" if query else "")


async def perform(
    request: web.Request, name: str, action: Action, targets: Sequence[Inputs]
) -> str:
    """Do an action on each target, whatever comes of the others; return a sentence about it.

    Raises:
        AdminError: no server did any of it.
        ActionRefused: a field is wrong.
    """
    texts, errors = [], []
    for inputs in targets:
        audit, user = inputs.site.audit, user_of(request)
        topic = inputs.text("dead_letter_topic")  # It is meant as a whole.
        channel = "" if topic else inputs.text("channel") or inputs.text("group")
        where = {"topic": topic or inputs.text("topic"), "channel": channel, "node": inputs.broker}
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
    """A change of topics or of a channel."""

    verb: str
    """On buttons, such as ``Empty``."""
    done: str
    """The sentence afterwards, such as ``{subject} was emptied``."""
    do: Do
    of_channel: bool | None = False
    """Whether it changes a channel; None if it does where one is named."""
    destroys: bool = False
    """Whether it removes messages; their number is shown before."""
    deletes: bool = False
    """Whether it removes the topic or channel too; its name must be typed."""
    at_daemons: bool = False
    """Whether it is done at the lookup daemons, also where it concerns one broker."""
    of_broker: bool = False
    """Whether it needs a broker."""
    is_in_place: bool = False
    """Whether brokers that the newest view shows without the topic are not asked."""
    is_undoable: bool = False
    """Whether what brokers answer is kept, to be undone."""
    note: str = ""
    """What the user should know of it."""

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
                    f"{quoted(name)} is no name of a topic or channel, which has {NAME_RULE}"
                )
        if not inputs.broker and self.of_broker:
            raise ActionRefused("no broker was named that is to be hidden")
        if self.at_daemons and not inputs.site.options.lookupd_http_addresses:
            raise ActionRefused("this page asks no lookup daemon: see --lookup")
        targets = []
        for topic in dict.fromkeys(topics):
            target = MultiDict(fields)
            target.update(topic=topic, channel=channel)
            targets.append(replace(inputs, fields=target))
        return targets

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
        view = site.collector.topology
        if not self.is_in_place or view is None:
            return site.admin
        lacking = view.lacking(inputs.text("topic"), inputs.text("channel"))
        named = site.admin.http.named_brokers  # Lookup daemons say themselves who has a topic.
        return site.admin.at(*(url for url in named if url not in lacking)) if named else site.admin

    async def _preview(self, inputs: Inputs) -> Preview:
        targets = self._split(inputs)
        topic, channel = targets[0].text("topic"), targets[0].text("channel")
        count = sum(map(self._waiting, targets)) if self.destroys else 0
        if len(targets) > 1:
            what = name = counted(len(targets), "topic")
        else:
            what, name = subject(topic, channel), f"{topic} / {channel}" if channel else topic
        return Preview(
            title=f"{self.verb} {what}",
            button=self._button(targets, what, count),
            lines=self._lines(targets, topic, channel),
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
                node.depth for url, node in topic.nodes.items() if inputs.broker in ("", url)
            )
        return count + sum(
            node.depth + node.in_flight_count + node.deferred_count
            for channel in channels
            for url, node in channel.nodes.items()
            if inputs.broker in ("", url)
        )

    def _button(self, targets: Sequence[Inputs], what: str, count: int) -> str:
        if targets[0].broker:
            where = targets[0].broker.partition("://")[2]
        else:
            totals = targets[0].view.topics
            topics = [totals[name] for one in targets if (name := one.text("topic")) in totals]
            where = counted(len({url for topic in topics for url in topic.nodes}), "broker")
        if self.at_daemons:
            return f"{self.verb} {what} of {where}"
        if not self.destroys:
            return f"{self.verb} {what} on {where}"
        some = counted(count, "message", form=",")
        return f"{self.verb} {f'{what} with {some}' if self.deletes else some} on {where}"

    def _lines(self, targets: Sequence[Inputs], topic: str, channel: str) -> list[str]:
        lines = [", ".join(one.text("topic") for one in targets)] if len(targets) > 1 else []
        channels = [totals for one in targets for totals in _channels(one)] if self.destroys else []
        if self.deletes and not channel and channels:
            count = counted(len(channels), "channel")
            lines.append(f"{count} and all policies are deleted, too; consumers are disconnected.")
        if consumers := sum(channel.counts.client_count for channel in channels):
            verb = "is" if consumers == 1 else "are"
            lines.append(f"{counted(consumers, 'consumer')} {verb} connected.")
        lines += [self.note] if self.note else []
        if missing := ", ".join(broker.address for broker in targets[0].view.missing):
            lines.append(
                f"Nothing happens at {missing}: no answer, and messages there are not counted."
            )
        return lines


def _channels(inputs: Inputs) -> list[ChannelTotals]:
    """Return the channel, or all of the topic."""
    topic = inputs.view.topics.get(inputs.text("topic"))
    channels = topic.channels.values() if topic else []
    return [channel for channel in channels if inputs.text("channel") in ("", channel.channel)]


def _servers(urls: Sequence[str], daemons: Container[str]) -> str:
    """Return which servers did it: ``127.0.0.1:4151``, ``2 brokers and 1 lookup daemon``."""
    brokers = [url for url in urls if url not in daemons]
    if len(brokers) == len(urls) == 1:
        return brokers[0].partition("://")[2]
    texts = [counted(len(brokers), "broker")] if brokers else []
    if len(urls) > len(brokers):
        texts.append(counted(len(urls) - len(brokers), "lookup daemon"))
    return " and ".join(texts)


async def _create_topic(admin: Admin, inputs: Inputs) -> Answers[Any]:
    return await admin.topics.create(inputs.text("topic"), inputs.number("queues") or None)


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
            raise ActionRefused(f"a header is written name: value, and this line is {quoted(line)}")
        if colon:
            headers[name.strip()] = value.strip()
    defer = inputs.text("defer")
    try:
        defer_ns = parse_duration(defer) if defer else 0
    except ValueError as error:
        raise ActionRefused(f"deliver in: {error}") from None
    if defer_ns < 0:
        raise ActionRefused(f"deliver in: {quoted(defer)} is in the past")
    for text in (form.get("tag", ""), form.get("order_key", ""), *headers, *headers.values()):
        if not text.isprintable():
            raise ActionRefused(f"{quoted(text)} has characters that a property cannot have")
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
    if len(text) != 1 or not text.isascii() or not text.isdecimal():
        raise ActionRefused(f"the priority {quoted(text)}: it is 0 to {MAX_PRIORITY}")
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


# undo of an empty


def _undo(inputs: Inputs) -> Undo:
    undo = inputs.site.undos.get(inputs.number("undo"))
    if undo is None or (undo.topic, undo.channel) != (
        inputs.name("topic"),
        inputs.name("channel"),
    ):
        raise ActionRefused("that was undone already, or too much was emptied since")
    return undo


async def _preview_restore(inputs: Inputs) -> Preview:
    undo = _undo(inputs)
    some = counted(undo.message_count, "message", form=",")
    lines = [
        f"They were emptied {shown.ago(undo.at_s)}. Consumers get them again, and with them what"
        " they have received since then."
    ]
    if undo.until_s < time.time():
        lines.append("Brokers have kept them until now without fail; some may be gone.")
    return Preview(
        title=f"Put {some} back into channel {undo.channel} of {undo.topic}",
        button=f"Put back {some}",
        lines=lines,
    )


async def _restore(inputs: Inputs) -> str:
    undo = _undo(inputs)
    undos, left = inputs.site.undos, set(undo.emptied)
    undos.remove(undo)
    try:
        answers = await inputs.site.admin.channels.restore(undo.topic, undo.channel, undo.emptied)
        left = set(answers.failures)
    finally:
        undos.keep(undo, left)
    count = sum(undo.emptied[url].depth for url in answers.values)
    verb = "was" if count == 1 else "were"
    text = f"{counted(count, 'message', form=',')} {verb} put back"
    waiting = counted(sum(answers.values.values()), "message", form=",")
    return with_failures(
        f"{text} into channel {undo.channel} of {undo.topic}, which has {waiting} now", answers
    )


TOPIC_ACTIONS: Mapping[str, Action] = {
    **{name: change.action() for name, change in _CHANGES.items()},
    "restore_channel": Action(_preview_restore, _restore),
}
