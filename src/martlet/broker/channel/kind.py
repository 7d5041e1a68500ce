"""The kinds of a channel: shared by consumers, fetched by a group's members, or by a follower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from martlet.broker.policy import BadPolicy

if TYPE_CHECKING:
    from martlet.broker.channel.channel import Channel
    from martlet.broker.policy import ChannelPolicy

_KINDS = {"shared": "a channel", "offsets": "a group", "follower": "a follower"}


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
