"""Requests and their replies, over topics.

The package may import the client's other packages. Start with `requester`.
"""
