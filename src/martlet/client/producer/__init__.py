"""Publishing: messages are gathered, sent, answered, and sent again where the answer is missing.

May import: `client.transport`, `client.hooks`, `client.errors`. Start with `producer`. What
`publish` takes waits in the `accumulator`; what `send` takes is numbered by the `session` at its
broker.
"""
