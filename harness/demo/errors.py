"""The demo's one error."""


class DemoFailed(Exception):
    """A step of the demo failed; the message says which and where to look."""
