"""What ends the job before its time."""


class DemoFailed(Exception):
    """The job cannot go on; the text says why."""
