"""Whether this machine and a pair can work, and what to do where they cannot."""
