"""The commands: one module each, which reads its flags and calls the packages below.

May import: all. Start with `main`, which finds the command.
"""
