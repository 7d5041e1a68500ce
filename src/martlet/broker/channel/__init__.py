"""Channels: what becomes of a topic's messages for the consumers that share them.

May import: `martlet.log`, `broker.queue`, `broker.groups` and what those may. Start with `channel`.
A message is handed out by `delivery`; one that was not finished comes again by `redelivery`, in
some `ordering`; `partitioned` is a channel of several queues seen as one.
"""
