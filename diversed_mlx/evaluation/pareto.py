"""Who beats whom: quality against acceptance. Pure functions of rows."""

from collections.abc import Sequence

from .rows import Row


def drafted(rows: Sequence[Row]) -> list[Row]:
    """Rows that have both a quality and an acceptance, and so a place in the picture."""
    return [row for row in rows if row.quality is not None and row.acceptance_rate is not None]


def front(rows: Sequence[Row]) -> list[Row]:
    """Rows that no other beats in both, from the least acceptance to the most.

    Args:
        rows: of one comparison.
    """
    placed = drafted(rows)
    best = [row for row in placed if not any(_beats(other, row) for other in placed)]
    return sorted(best, key=lambda row: _place(row)[::-1])


def dominating(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Rows that are better in one of quality and acceptance and not worse in the other, by their means.

    Args:
        row: what is to be beaten.
        rows: who may.
    """
    return [other for other in drafted(rows) if other.method != row.method and _beats(other, row)]


def surely_dominating(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Those whose intervals lie above the other's in both.

    Args:
        row: what is to be beaten.
        rows: who may.
    """
    found = []
    for other in dominating(row, rows):
        pairs = ((other.quality_ci, row.quality_ci), (other.acceptance_ci, row.acceptance_ci))
        if all(high is not None and low is not None and high[0] > low[1] for high, low in pairs):
            found.append(other)
    return found


def margin(row: Row, rows: Sequence[Row], within: float = 0.01) -> tuple[float, Row] | None:
    """How much more a row accepts than the best of those with its quality.

    Args:
        row: of the comparison.
        rows: the others; the row itself does not count.
        within: what counts as its quality: at least this near to it, or better. Default 0.01, a point.

    Returns:
        The difference in acceptance, negative where another accepts more, and the other; None without any.
    """
    quality, acceptance = _place(row)
    equal = [other for other in drafted(rows) if other.method != row.method and _place(other)[0] >= quality - within]
    if not equal:
        return None
    best = max(equal, key=lambda other: _place(other)[1])
    return acceptance - _place(best)[1], best


def _beats(one: Row, other: Row) -> bool:
    differences = _place(one)[0] - _place(other)[0], _place(one)[1] - _place(other)[1]
    return min(differences) >= 0 and max(differences) > 0


def _place(row: Row) -> tuple[float, float]:
    """Where a row of `drafted` stands."""
    assert row.quality is not None
    assert row.acceptance_rate is not None
    return row.quality, row.acceptance_rate
