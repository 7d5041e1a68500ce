"""Retention: which segments of the log are still needed, and what is deleted when the disk is full.

May import: `martlet.log`, `broker.topic`, `broker.journal`. Start with `history`; a `checkpoint`
precedes each deletion.
"""
