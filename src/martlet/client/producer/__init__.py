"""Publishing: accumulate messages, send them, and send them again if the answer is missing.

May import: `client.transport`, `client.hooks`, `client.errors`. Start with `producer`. Messages of
`publish` and `send` wait in the `accumulator` and are sent as the batches of `in_flight`.
"""
