"""Recovery: restore a broker from its data folder.

May import: `martlet.log`, and all of the broker; nothing of the broker imports it. Start with
`restore`, which builds a broker from the state that `journal_replay` has read; `trace_search` finds
single messages.
"""
