"""The one exception of the library."""


class DiversedError(Exception):
    """Something the user can fix; the message says how."""
