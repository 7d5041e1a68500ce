"""The commands: one thin module each, which reads its arguments and calls the rooms below."""
