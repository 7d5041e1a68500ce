"""Properties: what a message carries beside its body.

May import: nothing of Martlet's but its smallest modules. Start with `model`, the properties of one
message and their bytes; `block` is those of a batch, `bulk` those of many messages at once.
"""
