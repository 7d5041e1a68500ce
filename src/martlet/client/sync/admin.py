"""`Admin` without ``await``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from martlet.client.admin import admin as asynchronous
from martlet.client.admin import channels, declared, messages, nodes, topics
from martlet.client.admin.methods import BlockingOperationGroup, OperationGroup
from martlet.client.sync.base import Blocking, SyncProxy, awaited, iterated, like
from martlet.client.sync.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


class _SyncOperationGroup(Blocking[OperationGroup], BlockingOperationGroup):
    """Methods of `Admin` about one kind of thing, which block."""

    def __init__(self, admin: Admin, model: OperationGroup) -> None:
        self._admin = admin
        self._model = model
        self._http = model._http

    def _entered(self) -> LoopThread:
        return self._admin._entered()

    def _waited(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._entered().call(ask())

    def _iterated(self, items: AsyncGenerator[T]) -> Iterator[T]:
        yield from iterated(items, self._entered())


def _iterated(
    model: Callable[Concatenate[Any, P], AsyncGenerator[T]],
) -> Callable[Concatenate[_SyncOperationGroup, P], Iterator[T]]:
    """Make a method that iterates over the asyncio client's items."""

    @wraps(model)
    def method(group: _SyncOperationGroup, /, *arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        return group._iterated(model(group._model, *arguments, **named))

    return method


class TopicAdmin(_SyncOperationGroup, topics.TopicMethods):
    """`martlet.client.admin.TopicAdmin` with methods that block."""

    list = awaited(topics.TopicAdmin.list)
    create = awaited(topics.TopicAdmin.create)
    publish = awaited(topics.TopicAdmin.publish)
    pause = awaited(topics.TopicAdmin.pause)
    unpause = awaited(topics.TopicAdmin.unpause)
    empty = awaited(topics.TopicAdmin.empty)
    delete = awaited(topics.TopicAdmin.delete)
    configure = awaited(topics.TopicAdmin.configure)


class ChannelAdmin(_SyncOperationGroup):
    """`martlet.client.admin.ChannelAdmin` with methods that block."""

    list = awaited(channels.ChannelAdmin.list)
    create = awaited(channels.ChannelAdmin.create)
    pause = awaited(channels.ChannelAdmin.pause)
    unpause = awaited(channels.ChannelAdmin.unpause)
    empty = awaited(channels.ChannelAdmin.empty)
    restore = awaited(channels.ChannelAdmin.restore)
    delete = awaited(channels.ChannelAdmin.delete)
    configure = awaited(channels.ChannelAdmin.configure)
    replay = awaited(channels.ChannelAdmin.replay)
    peek = awaited(channels.ChannelAdmin.peek)
    peek_pages = _iterated(channels.ChannelAdmin.peek_pages)


class MessageAdmin(_SyncOperationGroup, messages.MessageMethods):
    """`martlet.client.admin.MessageAdmin` with methods that block."""

    read = awaited(messages.MessageAdmin.read)
    find = awaited(messages.MessageAdmin.find)


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

    list = awaited(nodes.NodeAdmin.list)
    copies = awaited(nodes.NodeAdmin.copies)
    stats = awaited(nodes.NodeAdmin.stats)
    health = awaited(nodes.NodeAdmin.health)
    tombstone = awaited(nodes.NodeAdmin.tombstone)


class LookupAdmin(_SyncOperationGroup):
    """`martlet.client.admin.nodes.LookupAdmin` with methods that block."""

    create_topic = awaited(nodes.LookupAdmin.create_topic)
    inactive_topics = awaited(nodes.LookupAdmin.inactive_topics)


class ReplicaAdmin(_SyncOperationGroup):
    """`martlet.client.admin.ReplicaAdmin` with methods that block."""

    show = awaited(nodes.ReplicaAdmin.show)


class Admin(SyncProxy[asynchronous.Admin]):
    """Inspect and change brokers: named ones, or all that lookup daemons know.

    ::

        with Admin("127.0.0.1:4151") as admin:
            answers = admin.channels.list("orders")

    It has the arguments, attributes and answers of `martlet.client.Admin`.
    """

    @like(asynchronous.Admin.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        admin = asynchronous.Admin(*arguments, **settings)
        super().__init__(admin)
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

    def __enter__(self) -> Self:
        self._enter(self._model.__aenter__())
        return self

    def close(self) -> None:
        """Close the connections."""
        thread = self._thread
        if thread is not None and not thread.is_forked:
            thread.call(self._model.close())
