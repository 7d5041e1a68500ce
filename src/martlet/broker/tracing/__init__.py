"""Tracing: the history of each message, and counters of channels, kept in the log.

May import: `martlet.log`. Start with `recorder`, which packs the steps of messages; `counters` has
the channels' totals, and `martlet.broker.recovery.trace_search` searches traces.
"""
