"""Assignment: which member of a group has which queues.

May import: `client.transport`, `client.group.queues`. Start with `membership`, a member at one
broker; `planner` is the leader's part where a group is at several brokers.
"""
