"""Channels: what becomes of a topic's messages for the consumers that share them.

May import: `martlet.log`, and the broker's other packages. Start with `channel`. A message is
handed out by `delivery` and held in `in_flight`; one that was not finished waits in `pending`, by
the rules of `redelivery` and `retry`; `cursor` is what of it all survives a restart.
"""
