"""Recovery: a broker from its data folder.

May import: `martlet.log`, and all of the broker; nothing of the broker imports it. Start with
`restore`, which makes a broker of the state that `journal_replay` has read; `trace_search` looks up
one message.
"""
