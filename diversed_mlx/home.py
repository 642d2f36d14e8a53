"""Where this program keeps what it made: heads and measurements. Knows a folder, nothing in it."""

import os
from pathlib import Path

VARIABLE = "DIVERSED_HOME"


def home() -> Path:
    """The folder that DIVERSED_HOME names, or ~/.cache/diversed where that is unset or empty; it need not exist."""
    return Path(os.environ.get(VARIABLE) or "~/.cache/diversed").expanduser()
