"""The doors: sockets around the core."""
