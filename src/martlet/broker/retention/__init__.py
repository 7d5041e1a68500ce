"""Retention: which segments of the log are still needed, and what goes when the disk is full.

May import: `martlet.log`, `broker.topic`, `broker.journal`. Start with `history`; `checkpoint`
comes before anything is let go.
"""
