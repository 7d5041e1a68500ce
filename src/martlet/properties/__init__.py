"""Properties: the tag, keys, headers and notes that a message carries beside its body.

May import: only Martlet's small top-level modules. Start with `model`, the properties of one
message and their bytes; `block` holds those of a batch.
"""
