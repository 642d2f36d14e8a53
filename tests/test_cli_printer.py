"""What a model says cannot command the terminal."""

import sys

import pytest

from diversed_mlx.cli.printer import harmless


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a\ufffd[2J\tb\n\ufffd"), (False, "a\x1b[2J\tb\n\x07")])
def test_control_characters_reach_files_only(monkeypatch, terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert harmless("a\x1b[2J\tb\n\x07") == shown
