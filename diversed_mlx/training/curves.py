"""The curves of a run as a picture (extra `plots`)."""

import os
from pathlib import Path

from ..errors import DiversedError
from .run import read_metrics

CURVES_FILE = "curves.png"
WINDOW = 10  # updates that a line averages over


def plot_curves(folder: Path) -> Path:
    """Draw reward, acceptance, weight and lambda of a run over its updates.

    Args:
        folder: of the run.

    Returns:
        The picture's path.

    Raises:
        DiversedError: matplotlib is not installed, or there are no figures.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, no global state
    except ImportError as error:
        raise DiversedError("curves need matplotlib: pip install 'diversed-mlx[plots]'") from error
    metrics = read_metrics(folder)
    if not metrics:
        raise DiversedError(f"{folder} has no figures yet")
    panels = (("reward", "reward"), ("acceptance_rate", "acceptance"), ("mean_target_weight", "weight on the target"),
              ("reg_scale", "λ"))  # fmt: skip
    figure = Figure(figsize=(9, 6), layout="constrained")
    steps = [row["step"] for row in metrics]
    for axes, (key, title) in zip(figure.subplots(2, 2, sharex=True).flat, panels, strict=True):
        values = [row[key] for row in metrics]
        means = [
            sum(values[max(0, i - WINDOW + 1) : i + 1]) / (i + 1 - max(0, i - WINDOW + 1)) for i in range(len(values))
        ]
        axes.plot(steps, values, color="0.75", linewidth=0.8, label="each update")
        axes.plot(steps, means, color="C0", label=f"mean of {WINDOW}")
        measured = {"reward": "quality"}.get(key, key)
        points = [(row["step"], row["measured"][measured]) for row in metrics
                  if row["measured"] and measured in row["measured"]]  # fmt: skip
        if points:
            axes.plot(*zip(*points, strict=True), "o", color="C1", markersize=4, label="held out")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.supxlabel("update")
    path, partial = folder / CURVES_FILE, folder / f".{os.getpid()}-{CURVES_FILE}"
    try:
        figure.savefig(partial, dpi=120)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path
