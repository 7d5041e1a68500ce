"""Consumer groups: members that fetch from the queues allocated to them and commit offsets.

May import: `martlet.log`, `broker.queue` and what that may. Start with `group_queue`, the group at
one queue, and `membership`, which assigns queues to members.
"""
