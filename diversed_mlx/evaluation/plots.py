"""A comparison as pictures (extra `plots`): the front, accepted lengths beside the expectation, one example's weights.

On a solid white ground, so that they can be read on a dark page and on paper, in Okabe and Ito's colours, which the
colour-blind can tell apart; markers and lines differ as well.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DiversedError
from ..theory import length_distribution
from .record import Answer, Token
from .rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# family: colour, marker
FAMILIES = {
    "none": ("#000000", "*"), "draft": ("#999999", "*"), "lossless": ("#000000", "o"), "static": ("#0072B2", "s"),
    "dynamic": ("#D55E00", "D"), "lenient": ("#009E73", "^"), "cascade-opt": ("#CC79A7", "v"),
    "cascade-token": ("#8C6D00", "<"), "mlx-lm": ("#56B4E9", "P"),
}  # fmt: skip
Label = tuple[str, float, float, str]  # text, x, y, colour
SUFFIXES = ("png", "svg", "pdf")
TOKENS_A_LINE, LINES = 32, 3  # of the weights' picture


def require_matplotlib() -> None:
    """Refuse pictures before anything is measured.

    Raises:
        DiversedError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise DiversedError("pictures need matplotlib: pip install 'diversed-mlx[plots]'") from error


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # without pyplot: no window system, no global state

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def image(figure: "Figure", suffix: str = "png") -> bytes:
    """A figure as the bytes of a file.

    Args:
        figure: what to draw.
        suffix: one of `SUFFIXES`. Default "png".
    """
    content = io.BytesIO()
    figure.savefig(content, format=suffix, dpi=140)
    return content.getvalue()


def front_figure(rows: Sequence[Row], metric: str, title: str) -> "Figure":
    """Quality against acceptance and against time, the fixed weights joined to their front.

    Args:
        rows: of one comparison.
        metric: what the task calls its reward.
        title: above both.
    """
    figure = _figure(11, 5)
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title)
    labels = (
        _points(left, [(row, row.acceptance_rate, row.acceptance_ci) for row in rows], 100),
        _points(right, [(row, row.seconds, row.seconds_ci) for row in rows], 1),
    )
    low, high = left.get_ylim()
    left.set_ylim(low, high + 0.12 * (high - low))  # room for labels over the best
    left.set_yticks([tick for tick in left.get_yticks() if low <= tick <= min(high, 100)])
    left.set_xlabel("accepted / proposed draft tokens, %   (right is better)")
    right.set_xlabel("seconds an answer   (left is better)")
    left.set_ylabel(f"{metric}, %")
    for axes, texts in zip((left, right), labels, strict=True):
        axes.grid(alpha=0.25)
        _place_labels(axes, texts)
    alone = next((row for row in rows if row.method == "none"), None)
    if alone is not None and alone.quality is not None:
        left.axhline(100 * alone.quality, color="black", linewidth=0.8, linestyle=":")
    handles, names = right.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 9), fontsize=9)
    return figure


def _points(axes: "Axes", placed: list, scale: float) -> "list[Label]":
    """Draw a family after the other, points with intervals both ways and a line through the fixed weights."""
    labels: list[Label] = []
    for family, (colour, marker) in FAMILIES.items():
        points = [
            (row, scale * x, x_ci)
            for row, x, x_ci in placed
            if row.method.split(":")[0] == family and x is not None and row.quality is not None
        ]
        if not points:
            continue
        across, up = [x for _, x, _ in points], [100 * row.quality for row, _, _ in points]
        strong = family == "dynamic"
        axes.errorbar(
            across,
            up,
            xerr=_bars(across, [[scale * end for end in x_ci] for _, _, x_ci in points]),
            yerr=_bars(up, [[100 * end for end in row.quality_ci] for row, _, _ in points]),
            fmt=marker,
            linestyle="-" if family == "static" else "none",
            color=colour,
            markersize=9 if strong else 6,
            markeredgecolor="white",
            markeredgewidth=0.6,
            elinewidth=0.8,
            linewidth=1.4,
            zorder=4 if strong else 3,
            label={"none": "target alone", "draft": "draft alone"}.get(family, family),
        )
        numbered = [(row.method.partition(":")[2], x, y) for (row, _, _), x, y in zip(points, across, up, strict=True)]
        labels += [(text, x, y, colour) for text, x, y in _joined([point for point in numbered if point[0]])]
    axes.margins(x=0.06)
    return labels


def _joined(points: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """One label for neighbours in a list that stand in one place: 0.2 … 0.95."""
    joined: list[tuple[str, float, float]] = []
    for text, x, y in points:
        if joined and abs(joined[-1][1] - x) <= 0.01 * abs(x) and abs(joined[-1][2] - y) < 0.5:
            first = joined[-1][0].split(" … ")[0]
            joined[-1] = (f"{first} … {text}", x, y)
        else:
            joined.append((text, x, y))
    return joined


def _place_labels(axes: "Axes", labels: "list[Label]") -> None:
    """Write each label beside its point, at the first of several places that is free."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float, float]] = []  # in points from the lower left corner: where a label starts and ends

    def free(start: float, end: float, height: float) -> bool:
        return start > 0 and all(abs(height - h) > 8 or start > e or end < b for b, e, h in taken)

    for text, x, y, colour in labels:
        at = 345 * (x - left) / (right - left), 270 * (y - bottom) / (top - bottom)
        length = 4.6 * len(text)
        places = [(5, 4), (5, -11), (-5 - length, 4), (-5 - length, -11), *((5, 4 + 9 * i) for i in range(1, 4))]
        across, up = next((p for p in places if free(at[0] + p[0], at[0] + p[0] + length, at[1] + p[1])), places[0])
        taken.append((at[0] + across, at[0] + across + length, at[1] + up))
        axes.annotate(
            text, (x, y), xytext=(across, up), textcoords="offset points", fontsize=7.5, color=colour, zorder=5
        )


def _bars(values: Sequence[float], intervals: Sequence[Sequence[float]]) -> np.ndarray:
    """Lengths of error bars, (2, n)."""
    return np.array([[max(v - low, 0), max(high - v, 0)] for v, (low, high) in zip(values, intervals, strict=True)]).T


def measured_lengths(answers: Sequence[Answer]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many drafts rounds accepted, what was to be expected, and the acceptance at each position of a draft.

    Args:
        answers: of one method that drafts and tells its chances.

    Returns:
        The shares of rounds that accepted 0..K, measured and expected, each (K + 1,); and of the rounds whose drafts
        before position i stand, the share in which i stands too, (K,), NaN where there is none.
    """
    rounds = [turn for answer in answers for turn in answer.reply.rounds if turn.chances]
    most = max(len(turn.chances or []) for turn in rounds)
    measured, expected = np.zeros(most + 1), np.zeros(most + 1)
    reached, stood = np.zeros(most), np.zeros(most)
    for turn in rounds:
        chances = turn.chances or []
        measured[turn.accepted] += 1
        expected[: len(chances) + 1] += length_distribution(chances)
        reached[: min(turn.accepted + 1, len(chances))] += 1
        stood[: turn.accepted] += 1
    by_position = np.divide(stood, reached, out=np.full(most, np.nan), where=reached > 0)
    return measured / len(rounds), expected / len(rounds), by_position


def rounds_figure(answers: Sequence[Answer]) -> "Figure":
    """For each method that tells its chances: accepted lengths beside the exact expectation, acceptance by position.

    Args:
        answers: of a comparison.
    """
    methods = list(dict.fromkeys(a.method for a in answers if any(turn.chances for turn in a.reply.rounds)))
    columns = min(4, max(1, len(methods)))
    lines = -(-len(methods) // columns)
    figure = _figure(11, 0.9 + 2.3 * max(lines, 1))
    panels = figure.subplots(max(lines, 1), columns, sharex=True, sharey=True, squeeze=False)
    for axes in panels.flat[len(methods) :]:
        axes.set_visible(False)
    for axes, method in zip(panels.flat, methods, strict=False):
        colour, _ = FAMILIES[method.split(":")[0]]
        measured, expected, by_position = measured_lengths([a for a in answers if a.method == method])
        lengths = np.arange(len(measured))
        axes.bar(lengths, measured, color=colour, alpha=0.55, label="rounds that accept so many")
        axes.plot(lengths, expected, "_", color="black", markersize=15, markeredgewidth=2, label="expected by theory")
        axes.plot(
            lengths[1:], by_position, "o-", color="#D55E00", markerfacecolor="white", markersize=4, linewidth=1,
            label="acceptance at this position, if those before stand",
        )  # fmt: skip
        axes.set_title(method, fontsize=10)
        axes.set_ylim(0, 1.05)
        axes.set_xticks(lengths)
        axes.tick_params(labelbottom=True, labelsize=8)
        axes.grid(alpha=0.25, axis="y")
    if methods:
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=9)
    figure.supxlabel("accepted drafts of a round; position in the draft", fontsize=10)
    return figure


def weighed_example(answers: Sequence[Answer]) -> Answer | None:
    """An answer whose weights are worth a look: of a head if there is one, else of whatever has weights."""
    weighed = [a for a in answers if a.verified_weights()]
    heads = [a for a in weighed if a.method.split(":")[0] == "dynamic"]
    return min(heads or weighed, key=lambda a: a.number, default=None)


def weights_figure(answer: Answer) -> "Figure":
    """The weight on the target along an answer, token by token.

    Args:
        answer: one with weights.
    """
    shown = answer.reply.tokens[: TOKENS_A_LINE * LINES]
    rows = [shown[i : i + TOKENS_A_LINE] for i in range(0, len(shown), TOKENS_A_LINE)]
    figure = _figure(11, 0.9 + 1.9 * len(rows))
    looks = {
        "accepted": ("#56B4E9", "", "accepted draft"),
        "corrected": ("#D55E00", "//", "corrected by the target"),
        "bonus": ("#DDDDDD", "..", "bonus of the target, not verified"),
        "plain": ("#DDDDDD", "", "target alone"),
    }
    for axes, tokens in zip(figure.subplots(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        for i, token in enumerate(tokens):
            colour, hatch, _ = looks[token.origin]
            height = 0.0 if token.target_weight is None else token.target_weight
            axes.bar(i, max(height, 0.012), color=colour, hatch=hatch, edgecolor="black", linewidth=0.5, width=0.9)
        axes.set_xlim(-0.6, TOKENS_A_LINE - 0.4)
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.5, 1])
        axes.set_xticks(range(len(tokens)), [_label(token) for token in tokens], rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("weight", fontsize=9)
        axes.grid(alpha=0.25, axis="y")
    from matplotlib.patches import Patch

    used = dict.fromkeys(token.origin for token in shown)
    figure.legend(
        handles=[Patch(facecolor=looks[o][0], hatch=looks[o][1], edgecolor="black", label=looks[o][2]) for o in used],
        loc="outside upper center", ncols=len(used), fontsize=9,
        title=f"{answer.method}: weight on the target where each token of an answer was verified", title_fontsize=10,
    )  # fmt: skip
    return figure


def _label(token: Token) -> str:
    """A token's text on one short line; what a picture cannot show is spelt out, and `$` starts no formula."""
    text = "".join(c if c.isprintable() else "\\n" if c == "\n" else "?" for c in token.text).strip() or "·"
    return (text if len(text) <= 10 else text[:9] + "…").replace("$", r"\$")
