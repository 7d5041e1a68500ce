"""Filters: conditions on the properties of messages, in a subset of SQL92.

`martlet.properties.filter.parser` has the grammar and reads a filter's text. The result is a
`Condition`, evaluated for one message or for all messages of a batch at once.

Imports only `martlet.properties`. Start reading in `parser`.
"""

MAX_LENGTH = 4096
"""The maximum length of a filter, in characters."""
