"""Snappy and deflate as NSQ's connections use them: bytes in, bytes out.

May import: nothing of Martlet's. Start with `deflate`, the smaller one.
"""
