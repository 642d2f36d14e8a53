"""Whether models fit in this machine's memory, and keeping them resident on a Mac. Knows bytes, no models."""

from collections.abc import Iterable

from mlx_lm.utils import maybe_set_recommended_wired_limit

from .aliases import PAIRS
from .errors import DiversedError
from .hub import weight_bytes
from .machine import USABLE, available_bytes


def require_fit(sources: Iterable[str]) -> None:
    """Refuse models that cannot fit in memory together, before they are downloaded or read.

    Args:
        sources: folders or Hub ids; one that is named twice is loaded, and counted, once.

    Raises:
        DiversedError: too large; names a pair that fits.
    """
    sources = list(dict.fromkeys(sources))
    sizes = [weight_bytes(source) for source in sources]
    needed = sum(size or 0 for size in sizes)
    if needed <= USABLE * available_bytes():
        return
    fitting = [
        f"--draft {draft} --target {target}" for draft, target, gb in PAIRS if gb * 1e9 <= USABLE * available_bytes()
    ]
    raise DiversedError(
        f"{' and '.join(sources)} take {needed / 1e9:.1f} GB and this machine has {available_bytes() / 1e9:.1f} GB for "
        f"models; " + (f"{fitting[0]} fits" if fitting else "use smaller models")
    )


def keep_resident() -> None:
    """Let Metal keep up to its recommended working set wired, which holds both models of a pair.

    mlx-lm does this for each generation and counts one model; a pair is loaded once and used until the end, so it
    is done once. Does nothing without Metal.
    """
    maybe_set_recommended_wired_limit()
