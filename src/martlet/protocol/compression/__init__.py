"""Snappy and deflate as NSQ's connections use them: bytes in, bytes out.

May import: none of Martlet's packages. Start with `deflate`, the smaller one.
"""
