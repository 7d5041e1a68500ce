"""The counterparts of NSQ's tools, with their flags: between topics, files, pipes and URLs.

May import: `martlet.client`. Start with `tail`, the smallest one.
"""
