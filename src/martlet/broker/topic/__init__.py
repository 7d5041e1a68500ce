"""Topics: queues of messages, and the channels that read them.

May import: `martlet.log`, `broker.channel`, the journal's entries, and what those may. Start with
`topic`, a topic at one of its queues; `expand` adds queues, `rewind` sets channels back.
"""
