"""The wheel holds all that the program needs, and works from a folder with spaces and accents."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_answers_from_a_folder_with_spaces_and_accents(tmp_path):
    folder = tmp_path / "Bücher und Söhne"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # A copy, since a build leaves folders behind whose old files the next wheel would hold.
    others = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "work")
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=others)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("diversed_mlx-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder), str(wheel)], check=True, timeout=300)

    def diversed(*arguments):
        # -P and the folder in front: what runs is the wheel, not the checkout.
        return subprocess.run(
            [sys.executable, "-P", "-m", "diversed_mlx.cli.main", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200", "DIVERSED_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=300,
        )

    where = subprocess.run(
        [sys.executable, "-P", "-c", "import diversed_mlx.cli, diversed_mlx; print(diversed_mlx.__file__)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert where.stdout.strip() == str(folder / "diversed_mlx" / "__init__.py")
    commands = diversed("--help").stdout
    assert all(name in commands for name in ("chat", "generate", "train", "bench", "demo", "convert", "tune", "doctor"))
    shown = diversed("demo", "--n-examples", "2", "--methods", "none,dynamic")
    assert shown.returncode == 0, shown.stderr
    assert "dynamic" in shown.stdout
    assert "100.0%" in shown.stdout  # the target alone solves its problems
