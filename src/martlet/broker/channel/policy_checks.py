"""Checks of a new policy of a channel: by its kind, and by who had set the fields.

A channel is shared by consumers, fetched by a group's members, or represents a follower. A consumer
may request settings of its channel, such as an order or tags:

===================================  =================================================
the channel's policy has the field   a consumer that requests another value
===================================  =================================================
not set, no other consumer            sets it
not set, other consumers             is refused
set by a consumer                    is refused; but filters change once no other consumes
set by an operator                   is refused
===================================  =================================================

A filter, by tags or in SQL, may change, since a new version of an application may want other
messages; another order would break an application that relies on the first. In folders of versions
that did not record which fields consumers had set, all fields count as set by an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from shlex import quote

from martlet.broker.channel.channel import Channel
from martlet.broker.errors import Conflict
from martlet.broker.policy import BadPolicy, ChannelPolicy

_KINDS = {"shared": "a channel", "offsets": "a group", "follower": "a follower"}
_CHANGEABLE = frozenset({"tags", "filter"})
"""Fields that a consumer may set although another consumer had set them before."""
_DEFAULT = ChannelPolicy()


def check_kind(channel: Channel, policy: ChannelPolicy) -> None:
    """Check that a channel may change to a policy. Raises BadPolicy."""
    what = f"{channel.name!r} of topic {channel.topic!r}"
    if policy.retain == "off" and policy.kind != "follower":
        raise BadPolicy(
            f"retain: {what} is no follower, and its unfinished messages are always kept"
        )
    if policy.kind == channel.policy.kind == "shared":
        return
    if "follower" in (policy.kind, channel.policy.kind) and policy.kind != channel.policy.kind:
        raise BadPolicy(
            f"kind: {what} is {_KINDS[channel.policy.kind]} and cannot become"
            f" {_KINDS[policy.kind]}; take another name"
        )
    if policy.kind == "shared":
        raise BadPolicy(f"kind: {what} is a group and stays one; delete it, or take another name")
    if policy.order != "none" and channel.group is None:
        raise BadPolicy(
            f"kind: {what} has order={policy.order}, which a group does not have, as each of its"
            " queues is in order anyway; set order=none with it"
        )
    if policy.order != "none":
        raise BadPolicy(f"order: {what} is a group, each queue of which is in order anyway")
    if policy.rate_per_s:
        raise BadPolicy(
            f"rate_per_s: {what} is a group, whose members fetch at their own pace; give each"
            " consumer a rate_per_s"
        )
    if channel.ephemeral:
        raise BadPolicy(f"kind: {what} is ephemeral, and a group keeps its offsets")
    if channel.group is None and channel.all_queues.consumers:
        raise BadPolicy(f"kind: {what} has consumers; let them stop before it becomes a group")


def wished(channel: Channel, wish: Mapping[str, object]) -> ChannelPolicy:
    """Return a channel's policy with a consumer's requests; the same object if nothing changes.

    Raises:
        BadPolicy: a requested value is invalid.
        Conflict: a consumer may not change a field.
    """
    policy = channel.policy
    requested = policy.changed(wish)
    changed = [name for name in wish if getattr(requested, name) != getattr(policy, name)]
    for name in changed:
        _require_free(channel, name, policy, requested)
    if not changed:
        return policy
    return replace(requested, from_consumers=tuple(sorted({*policy.from_consumers, *changed})))


def _require_free(
    channel: Channel, name: str, policy: ChannelPolicy, requested: ChannelPolicy
) -> None:
    """Check that a consumer may change a field. Raises Conflict."""
    is_set = getattr(policy, name) != getattr(_DEFAULT, name)
    by_consumer = name in policy.from_consumers
    is_used = bool(channel.all_queues.consumers)
    if channel.group is not None and len(channel.group.members):
        is_used = True
    if not is_used and (not is_set or (by_consumer and name in _CHANGEABLE)):
        return
    why = "a consumer has set that" if by_consumer else "an operator has set that"
    if not is_set:
        why = "others consume from it already"
    new = _written(getattr(requested, name))
    raise Conflict(
        f"channel {channel.name!r} of topic {channel.topic!r} has"
        f" {name}={_written(getattr(policy, name))}, and this consumer wants {name}={new}; {why}."
        " Have all its consumers want the same, take another channel, or change it:"
        f" martlet channel configure {channel.topic} {channel.name} {quote(f'{name}={new}')}"
    )


def _written(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
