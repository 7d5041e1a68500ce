"""Tracing: the history of each message, and counters of channels, kept in the log.

May import: `martlet.log`. Start with `model`, the trace of one message; `recorder` packs the steps,
`counters` the channels' totals; `martlet.broker.recovery.trace_search` searches traces.
"""
