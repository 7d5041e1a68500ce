"""Assignment: distribute the queues among the members of a group.

May import: `client.transport`, `client.group.queues`. Start with `membership`, a member at one
broker; `planner` is the leader's part for a group at several brokers.
"""
