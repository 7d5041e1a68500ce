"""The calls of consumer groups: membership, assignment of queues, and committed offsets.

====================  ==============================================================================
``group.join``        become a member of a group, created if missing; later calls on this connection
                      are the member's, and its end means leaving
``group.assignment``  the queues that a member has now: at once if they have changed since
                      ``generation``, else when they do, or after ``wait_ms``
``group.volunteer``   be ready to lead: to assign the queues of all brokers; ``brokers`` is the
                      number of brokers that the member is connected to, ``name`` its name at all of
                      them.  The leader gets the ``roster`` with its assignment, a number that
                      changes when members come or go
``group.plan``        the leader's assignment of queues to ``members``, for a ``roster`` and its
                      ``count`` of queues, as ``group.describe`` reports them
``group.release``     release queues, with the last ``offsets`` handled there
``group.leave``       leave the group
``group.commit``      commit a member's ``offsets`` by queue; those of the queues named in ``back``
                      may be lower than the committed ones
``group.follow``      a reader that keeps its own position is at ``offsets`` of ``topic``, by queue,
                      shown as ``group``: a group of the kind ``follower``, created if missing.
                      With ``retain`` the broker keeps messages until the reader has read them.  The
                      ``topic_id`` of an earlier topic of that name is refused with TOPIC_MADE_ANEW.
                      Answers the lag
====================  ==============================================================================

A call of a caller that is not (or no longer) a member is refused with ``NOT_A_MEMBER``: join again.
Offsets of queues that a member does not have are not committed; the answer lists them as
``refused``. Offsets only rise, except in queues named in ``back``: any other offset below the
committed one is ignored, and the answer has the one that counts. `martlet.server.rpc.fetch` has the
calls for reading, `martlet.schema.groups` those of operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from martlet.allocation import STRATEGIES
from martlet.broker.errors import Conflict, NotAMember, OutOfReach
from martlet.broker.groups.membership import CUSTOM, MAX_MEMBERS, AllocatedTopic, GroupConsumer
from martlet.broker.policy import BadPolicy
from martlet.broker.topic.offset_reset import STARTS, begin_group, follow, reset_group
from martlet.properties.filter import MAX_LENGTH
from martlet.schema import groups as schema
from martlet.server.rpc.fetch import MAX_WAIT_MS, LongPoll, find_group, group_of, patience_ms
from martlet.server.rpc.group_failures import failures_of
from martlet.server.rpc.registry import CallArguments, CallError, served
from martlet.text import counted

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from martlet.broker.broker import BrokerCore
    from martlet.broker.channel.channel import Channel
    from martlet.broker.groups.membership import Membership
    from martlet.broker.topic.topic import Topic
    from martlet.options import BrokerOptions
    from martlet.server.group_commit import GroupCommit
    from martlet.server.rpc.registry import Answer, Caller, Methods

_MILLISECOND_NS = 1_000_000
DEFAULT_LEASE_MS = 120_000
MAX_LEASE_MS = 3_600_000
MAX_STRATEGY_LENGTH = 80
MAX_NAME_LENGTH = 300


class GroupCalls:
    """The groups of a broker.

    Args:
        options: the broker's name and zone, for the assignment.
        is_stopping: whether the broker is closing its connections to stop.
    """

    def __init__(
        self,
        broker: BrokerCore,
        commits: GroupCommit,
        options: BrokerOptions,
        is_stopping: Callable[[], bool],
        log: logging.Logger,
    ) -> None:
        self._broker = broker
        self._commits = commits
        self._place = (
            f"{options.broadcast_address}:{options.broadcast_tcp_port}",
            options.topology_zone,
        )
        self._is_stopping = is_stopping
        self._log = log

    def methods(self) -> Methods:
        """The method of each name."""
        return {
            "group.join": self.join,
            "group.assignment": self.assignment,
            "group.volunteer": self.volunteer,
            "group.plan": self.plan,
            "group.release": self.release,
            "group.leave": self.leave,
            "group.commit": self.commit,
            "group.follow": self.follow,
            **served(schema.DESCRIBE, self.describe),
            **served(schema.LIST, self.list_groups),
            **served(schema.RESET, self.reset),
        }

    # members

    async def join(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Join a group as a member."""
        arguments.only(
            "topic", "group", "client_id", "strategy", "room", "queues", "start", "start_time_ms",
            "start_offset", "lease_ms", "wanted_tags", "filter",
        )  # fmt: skip
        client_id = arguments.text("client_id", max_value=255)
        strategy = arguments.text("strategy", "sticky", max_value=MAX_STRATEGY_LENGTH)
        if not strategy.startswith(CUSTOM):
            strategy = arguments.choice("strategy", list(STRATEGIES), "sticky")
        lease_ms = arguments.number(
            "lease_ms", DEFAULT_LEASE_MS, min_value=1000, max_value=MAX_LEASE_MS
        )
        room = arguments.text("room", "", max_value=255)
        queues = _numbers(arguments, "queues")
        topic, channel = await self._begin(arguments)
        members = self._members(topic, channel)
        member = members.join(
            client_id,
            lease_ns=lease_ms * _MILLISECOND_NS,
            strategy=strategy,
            room=room,
            queues=queues,
            address=caller.remote_address,
            owner=caller.connection,
        )
        if caller.connection is not None:
            leave = caller.connection.when_gone
            gone = [key for key in leave if isinstance(key, GroupConsumer) and key.is_gone]
            for former in gone:
                del leave[former]
            leave[member] = lambda: self._gone(members, member)
        self._log.info(
            "GROUP %s:%s: %s joins from %s, generation %d",
            topic.name, channel.name, member.id, member.address, members.generation,
        )  # fmt: skip
        return {
            "member": member.id,
            **_assigned(channel, members, member),
            "lease_ms": lease_ms,
        }

    def _gone(self, members: Membership, member: GroupConsumer) -> None:
        """Lose a member after its connection ended, unless the broker closed it to stop."""
        if self._is_stopping():
            members.leave(member)
        else:
            members.lose(member)

    async def _begin(self, arguments: CallArguments) -> tuple[Topic, Channel]:
        """Return the group; create it if missing. Raises CallError."""
        broker = self._broker
        topic_name, name = arguments.name("topic"), arguments.name("group")
        start = arguments.choice("start", STARTS, "last")
        time_ms = arguments.number("start_time_ms") if start == "time" else 0
        offset = arguments.number("start_offset") if start == "offset" else 0
        wish: dict[str, object] = {}
        if "wanted_tags" in arguments:
            wish["tags"] = arguments.sequence("wanted_tags")
        if "filter" in arguments:
            wish["filter"] = arguments.text("filter", max_value=MAX_LENGTH)
        topic = broker.topic(topic_name)
        present = topic.channels.get(name)
        policy = present.policy if present is not None else None
        try:
            channel = begin_group(topic, name, start, time_ms, offset, wish)
        except BadPolicy as error:
            raise CallError("CONFLICT" if present else "BAD_ARGUMENT", str(error)) from None
        if present is not channel or channel.policy != policy:
            await self._commits.all_settled()
            if channel.closed:
                raise CallError("NOT_FOUND", f"group {name!r} was deleted while it was joined")
        return topic, channel

    def _members(self, topic: Topic, channel: Channel) -> Membership:
        assert channel.group is not None
        members = channel.group.members
        members.resize(AllocatedTopic(topic.name, *self._place, len(topic.at_queues)))
        return members

    async def assignment(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Answer a member's queues, once they have changed."""
        arguments.only("topic", "group", "member", "generation", "wait_ms")
        topic, members, member = self._member(caller, arguments)
        generation = arguments.number("generation")
        wait_ms = arguments.number("wait_ms", 15_000, max_value=MAX_WAIT_MS)
        poll = LongPoll(min(wait_ms, patience_ms(member)))
        member.watchers[poll.ring] = None
        try:
            while member.changed <= generation and not member.is_gone and not poll.is_over:
                poll.clear()
                await poll.wait()
        finally:
            member.watchers.pop(poll.ring, None)
        if member.is_gone:
            raise NotAMember(f"{member.id!r} is no member of the group any more: join again")
        members.renew(member)
        return _assigned(topic.find_channel(arguments.name("group")), members, member)

    def volunteer(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Volunteer as the leader, or withdraw."""
        arguments.only("topic", "group", "member", "name", "brokers")
        _, members, member = self._member(caller, arguments)
        name = arguments.text("name", max_value=MAX_NAME_LENGTH)
        members.volunteer(member, name, arguments.number("brokers"))
        return None

    def plan(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Take the leader's assignment."""
        arguments.only("topic", "group", "member", "roster", "count", "members")
        topic, members, member = self._member(caller, arguments)
        plan = arguments.mapping("members", max_value=MAX_MEMBERS)
        queues = {member_id: _numbers(CallArguments(plan), member_id) for member_id in plan}
        roster, count = arguments.number("roster"), arguments.number("count")
        members.plan(member, roster, count, queues)
        self._log.debug(
            "GROUP %s:%s: %s assigns the queues, generation %d",
            topic.name, arguments.name("group"), member.id, members.generation,
        )  # fmt: skip
        return None

    def release(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Release queues."""
        arguments.only("topic", "group", "member", "generation", "offsets", "back")
        topic, members, member = self._member(caller, arguments)
        answer = self._commit(topic, members, member, arguments)
        refused = answer.get("refused", {})
        offsets: Mapping[int, int] = answer["offsets"]
        members.release(member, [queue for queue in offsets if queue not in refused])
        return answer | {"generation": members.generation}

    def leave(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Leave the group."""
        arguments.only("topic", "group", "member")
        _, members, member = self._member(caller, arguments)
        members.leave(member)
        if caller.connection is not None:
            caller.connection.when_gone.pop(member, None)
        return None

    def commit(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Commit a member's offsets."""
        arguments.only("topic", "group", "member", "generation", "offsets", "back")
        topic, members, member = self._member(caller, arguments)
        return self._commit(topic, members, member, arguments)

    def _commit(
        self, topic: Topic, members: Membership, member: GroupConsumer, arguments: CallArguments
    ) -> dict[str, Any]:
        generation = arguments.number("generation")
        name = arguments.name("group")
        back = set(_numbers(arguments, "back"))
        offsets: dict[int, int] = {}
        refused: dict[int, str] = {}
        for queue, offset in _offsets_by_queue(arguments).items():
            part = topic.at_queue(queue)
            if not members.holds(member, queue, generation):
                refused[queue] = "NOT_HELD"
            elif offset > part.limit:
                refused[queue] = "OUT_OF_REACH"
            else:
                group = part.find_channel(name).group
                assert group is not None
                take = group.go_back if queue in back else group.commit
                offsets[queue] = take(offset, member)
                self._broker.moved.write_first(part.find_channel(name))
        return {"offsets": offsets} | ({"refused": refused} if refused else {})

    def _member(
        self, caller: Caller, arguments: CallArguments
    ) -> tuple[Topic, Membership, GroupConsumer]:
        topic, members = group_of(self._broker, arguments)
        return topic, members, members.find(arguments.text("member"), caller.connection)

    # external readers

    def follow(self, caller: Caller, arguments: CallArguments) -> Answer:
        """Set the offsets of an external reader, which keeps its own position."""
        arguments.only("topic", "topic_id", "group", "offsets", "retain")
        topic, name = arguments.topic(self._broker), arguments.name("group")
        offsets = _offsets_by_queue(arguments)
        if arguments.number("topic_id", topic.id) != topic.id:
            raise CallError(
                "NOT_FOUND", f"TOPIC_MADE_ANEW: topic {topic.name!r} is number {topic.id} now"
            )
        try:
            channel = follow(topic, name, offsets, retain=arguments.flag("retain"))
        except BadPolicy as error:
            raise CallError("BAD_ARGUMENT", str(error)) from None
        except OutOfReach as error:
            raise CallError("OUT_OF_REACH", str(error)) from None
        self._broker.write_moved(channel)
        return {"topic": topic.name, "group": name, "lag": channel.all_queues.depth}

    # operators

    def describe(self, caller: Caller, request: schema.NamedGroup) -> schema.GroupDescription:
        """Describe a group's members and offsets."""
        topic, members = find_group(self._broker, request.topic, request.group)
        return _described(topic, topic.channels[request.group], members)

    def list_groups(self, caller: Caller, request: schema.ListGroups) -> schema.Groups:
        """List groups."""
        broker = self._broker
        topics = [broker.find_topic(request.topic)] if request.topic else broker.topics.values()
        return schema.Groups(
            tuple(
                schema.GroupSummary(
                    topic=topic.name,
                    group=name,
                    member_count=len(channel.group.members),
                    queue_count=len(topic.at_queues),
                    lag=channel.all_queues.depth,
                    is_paused=channel.paused,
                    kind=channel.policy.kind,
                    retains=channel.policy.retain == "on",
                )
                for topic in sorted(topics, key=lambda topic: topic.name)
                for name, channel in sorted(topic.channels.items())
                if channel.group is not None
            )
        )

    def reset(self, caller: Caller, request: schema.ResetGroup) -> schema.GroupReset:
        """Reset a group's offsets, or show what follows (dry run)."""
        topic, members = find_group(self._broker, request.topic, request.group)
        numbers = range(len(topic.at_queues))
        if request.queue is not None:
            number = topic.at_queue(request.queue).number
            numbers = range(number, number + 1)
        is_dry = request.dry_run
        if len(members) and not request.force and not is_dry:
            raise Conflict(
                f"the group has {counted(len(members), 'member')}, which keep their own offsets:"
                " stop all first, or reset it by force, after which each has to join again"
            )
        channel = topic.channels[request.group]
        if channel.policy.kind == "follower":
            raise Conflict(
                f"{channel.name!r} shows a reader that keeps its own position, such as a query"
                " of Spark: reset it there"
            )
        before = [part.cursor.next for part in channel.at_queues]
        time_ms, offset = request.time_ms or 0, request.offset or 0
        after = reset_group(topic, channel, numbers, request.to, time_ms, offset, is_dry=is_dry)
        queues = []
        for number in numbers:
            part, to_offset = channel.at_queues[number], after[number]
            lag = part.source.count_from(to_offset) if is_dry else part.depth
            queues.append(
                schema.ResetQueue(queue=number, before=before[number], offset=to_offset, lag=lag)
            )
        return schema.GroupReset(tuple(queues))


def _assigned(channel: Channel, members: Membership, member: GroupConsumer) -> dict[str, object]:
    """Return the answer with a member's queues."""
    queues = []
    for queue in sorted(member.held):
        part = channel.at_queues[queue]
        queues.append(
            {
                "queue": queue,
                "offset": part.cursor.next,
                "start_offset": min(part.queue.start_offset, part.cursor.next),
                "end_offset": part.source.limit,
                "since": member.held[queue].since,
            }
        )
    leads = {"roster": members.roster} if member is members.leader else {}
    return {"generation": members.generation, "queues": queues, "revoked": member.revoked} | leads


def _described(topic: Topic, channel: Channel, members: Membership) -> schema.GroupDescription:
    queues = []
    wall_ahead_ns = channel.context.wall() - channel.context.clock()
    for part in channel.at_queues:
        number = part.queue.number
        holding = members.holders.get(number)
        target = members.targets.get(number)
        queues.append(
            schema.GroupQueueDescription(
                queue=number,
                member=holding.member.id if holding is not None else None,
                since=holding.since if holding is not None else None,
                is_revoked=holding is not None and holding.until_ns is not None,
                target=target.id if target is not None else None,
                offset=part.cursor.next,
                start_offset=min(part.queue.start_offset, part.cursor.next),
                end_offset=part.source.limit,
                lag=part.depth,
                deferred_count=part.deferred_count,
                failures={str(offset): count for offset, count in failures_of(part)},
            )
        )
    return schema.GroupDescription(
        topic=topic.name,
        group=channel.name,
        generation=members.generation,
        roster=members.roster,
        place={"broker": members.allocated.broker, "room": members.allocated.room},
        strategy=members.strategy,
        leader=members.leader.id if members.leader is not None else None,
        is_paused=channel.paused,
        kind=channel.policy.kind,
        retains=channel.policy.retain == "on",
        tags=tuple(channel.policy.tags),
        filter=channel.policy.filter,
        lag=channel.all_queues.depth,
        members=tuple(
            schema.MemberDescription(
                member=member.id,
                client_id=member.client_id,
                address=member.address,
                room=member.room,
                name=member.name,
                brokers=member.brokers,
                since_ms=(member.since_ns + wall_ahead_ns) // _MILLISECOND_NS,
                lease_ms=member.lease_ns // _MILLISECOND_NS,
                lease_until_ms=(member.lease_until_ns + wall_ahead_ns) // _MILLISECOND_NS,
                queues=tuple(sorted(member.held)),
                revoked=tuple(member.revoked),
            )
            for member in members.members.values()
        ),
        queues=tuple(queues),
    )


def _numbers(arguments: CallArguments, name: str) -> list[int]:
    if name not in arguments:
        return []
    numbers = arguments.sequence(name, max_value=1024)
    return [_offset(name, number) for number in numbers]


def _offsets_by_queue(arguments: CallArguments) -> dict[int, int]:
    """Return offsets by queue; the keys of a JSON object are texts."""
    offsets: dict[int, int] = {}
    for queue, offset in arguments.mapping("offsets", max_value=1024).items():
        if not queue.isascii() or not queue.isdigit():
            raise CallError(
                "BAD_ARGUMENT", f"'offsets': {queue[:40]!r} is not the number of a queue"
            )
        offsets[int(queue)] = _offset("offsets", offset)
    return offsets


def _offset(name: str, number: object) -> int:
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise CallError(
            "BAD_ARGUMENT", f"{name!r}: {str(number)[:40]} is no whole number from 0 on"
        )
    return number
