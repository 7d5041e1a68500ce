"""What the command-line tools do, without their flags: between topics, files, pipes and URLs.

May import: `martlet.client`. Start with `tail`, the smallest one; the flags are in
`martlet.options`, the commands in `martlet.apps`.
"""
