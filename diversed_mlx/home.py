"""Where this program keeps what it made: heads and measurements. Knows a folder, nothing in it."""

import os
from pathlib import Path

VARIABLE = "DIVERSED_HOME"


def home() -> Path:
    """The folder that DIVERSED_HOME names, by default ~/.cache/diversed; it need not exist."""
    return Path(os.environ.get(VARIABLE, "~/.cache/diversed")).expanduser()
