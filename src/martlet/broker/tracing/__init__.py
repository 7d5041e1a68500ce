"""Tracing: what became of each message and how often, as the log keeps it.

May import: `martlet.log`. Start with `model`, the trace of one message; `recorder` packs the steps,
`counters` the channels' totals; `martlet.broker.recovery.trace_search` finds a trace again.
"""
