"""Tracing: what became of each message, recorded in the log and found again.

May import: `martlet.log`, `broker.recovery`. Start with `model`, the trace of one message;
`recorder` writes, `search` reads, `counters` are the channels' totals.
"""
