"""The queues that a consumer has: fetched ahead, handed out in order, committed.

May import: `client.transport`. Start with `assigned_queue`; `fetcher` fills it, `ready_queues`
hands out messages of several in turn.
"""
