"""The rules of topics, channels and messages, without sockets, files, clock or chance."""
