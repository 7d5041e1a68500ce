"""The supervisor: servers as processes, started, watched, started again, and stopped in order."""
