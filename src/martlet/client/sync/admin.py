"""`Admin` without ``await``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from martlet.client.admin import admin as asynchronous
from martlet.client.admin import channels, declared, messages, nodes, topics
from martlet.client.admin.methods import BlockingOperationGroup, OperationGroup
from martlet.client.sync.base import SyncProxy, like, next_of

P = ParamSpec("P")
T = TypeVar("T")


class _SyncOperationGroup(BlockingOperationGroup):
    """Methods of `Admin` about one kind of thing, which block.

    Args:
        admin: has entered its block.
        model: the asyncio client's methods.
    """

    def __init__(self, admin: Admin, model: OperationGroup) -> None:
        self._admin = admin
        self._model = model
        self._http = model._http

    def _waited(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._admin._entered().call(ask())

    def _iterated(self, items: AsyncGenerator[T]) -> Iterator[T]:
        return self._admin._iterated(items)


def _awaited(
    model: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_SyncOperationGroup, P], T]:
    """Make a method that waits for the asyncio client's coroutine of the same name."""

    @wraps(model)
    def method(group: _SyncOperationGroup, /, *arguments: P.args, **named: P.kwargs) -> T:
        return group._admin._entered().call(model(group._model, *arguments, **named))

    return method


def _iterated(
    model: Callable[Concatenate[Any, P], AsyncGenerator[T]],
) -> Callable[Concatenate[_SyncOperationGroup, P], Iterator[T]]:
    """Make a method that iterates over the asyncio client's items."""

    @wraps(model)
    def method(group: _SyncOperationGroup, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        return group._admin._iterated(model(group._model, *arguments, **named))

    return method


class TopicAdmin(_SyncOperationGroup, topics.TopicMethods):
    """`martlet.client.admin.TopicAdmin` with methods that block."""

    list = _awaited(topics.TopicAdmin.list)
    create = _awaited(topics.TopicAdmin.create)
    publish = _awaited(topics.TopicAdmin.publish)
    pause = _awaited(topics.TopicAdmin.pause)
    unpause = _awaited(topics.TopicAdmin.unpause)
    empty = _awaited(topics.TopicAdmin.empty)
    delete = _awaited(topics.TopicAdmin.delete)
    configure = _awaited(topics.TopicAdmin.configure)


class ChannelAdmin(_SyncOperationGroup):
    """`martlet.client.admin.ChannelAdmin` with methods that block."""

    list = _awaited(channels.ChannelAdmin.list)
    create = _awaited(channels.ChannelAdmin.create)
    pause = _awaited(channels.ChannelAdmin.pause)
    unpause = _awaited(channels.ChannelAdmin.unpause)
    empty = _awaited(channels.ChannelAdmin.empty)
    restore = _awaited(channels.ChannelAdmin.restore)
    delete = _awaited(channels.ChannelAdmin.delete)
    configure = _awaited(channels.ChannelAdmin.configure)
    replay = _awaited(channels.ChannelAdmin.replay)
    peek = _awaited(channels.ChannelAdmin.peek)
    peek_pages = _iterated(channels.ChannelAdmin.peek_pages)


class MessageAdmin(_SyncOperationGroup, messages.MessageMethods):
    """`martlet.client.admin.MessageAdmin` with methods that block."""

    read = _awaited(messages.MessageAdmin.read)
    find = _awaited(messages.MessageAdmin.find)


class GroupAdmin(_SyncOperationGroup, declared.GroupMethods):
    """`martlet.client.admin.GroupAdmin` with methods that block."""


class DeadLetterAdmin(_SyncOperationGroup, declared.DeadLetterMethods):
    """`martlet.client.admin.DeadLetterAdmin` with methods that block."""


class DelayedAdmin(_SyncOperationGroup, declared.DelayedMethods):
    """`martlet.client.admin.DelayedAdmin` with methods that block."""


class TransactionAdmin(_SyncOperationGroup, declared.TransactionMethods):
    """`martlet.client.admin.TransactionAdmin` with methods that block."""


class TraceAdmin(_SyncOperationGroup, declared.TraceMethods):
    """`martlet.client.admin.TraceAdmin` with methods that block."""


class NodeAdmin(_SyncOperationGroup):
    """`martlet.client.admin.NodeAdmin` with methods that block."""

    list = _awaited(nodes.NodeAdmin.list)
    copies = _awaited(nodes.NodeAdmin.copies)
    stats = _awaited(nodes.NodeAdmin.stats)
    health = _awaited(nodes.NodeAdmin.health)
    tombstone = _awaited(nodes.NodeAdmin.tombstone)


class LookupAdmin(_SyncOperationGroup):
    """`martlet.client.admin.nodes.LookupAdmin` with methods that block."""

    create_topic = _awaited(nodes.LookupAdmin.create_topic)
    inactive_topics = _awaited(nodes.LookupAdmin.inactive_topics)


class ReplicaAdmin(_SyncOperationGroup):
    """`martlet.client.admin.ReplicaAdmin` with methods that block."""

    show = _awaited(nodes.ReplicaAdmin.show)


class Admin(SyncProxy):
    """Inspect and change brokers: named ones, or all that lookup daemons know.

    ::

        with Admin("127.0.0.1:4151") as admin:
            answers = admin.channels.list("orders")

    It has the arguments, attributes and answers of `martlet.client.Admin`.
    """

    @like(asynchronous.Admin.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__()
        admin = asynchronous.Admin(*arguments, **settings)
        self._asynchronous = admin
        self.topics = TopicAdmin(self, admin.topics)
        self.channels = ChannelAdmin(self, admin.channels)
        self.messages = MessageAdmin(self, admin.messages)
        self.groups = GroupAdmin(self, admin.groups)
        self.dead_letters = DeadLetterAdmin(self, admin.dead_letters)
        self.delayed = DelayedAdmin(self, admin.delayed)
        self.transactions = TransactionAdmin(self, admin.transactions)
        self.trace = TraceAdmin(self, admin.trace)
        self.nodes = NodeAdmin(self, admin.nodes)
        self.lookup = LookupAdmin(self, admin.lookup)
        self.replicas = ReplicaAdmin(self, admin.replicas)

    def _iterated(self, items: AsyncGenerator[T]) -> Iterator[T]:
        thread = self._entered()
        try:
            while (item := thread.call(next_of(items))) is not None:
                yield item
        finally:
            thread.call(items.aclose())

    def __enter__(self) -> Self:
        self._enter(self._asynchronous.__aenter__())
        return self

    def close(self) -> None:
        """Close the connections."""
        thread = self._thread
        if thread is not None and not thread.is_forked:
            thread.call(self._asynchronous.close())
