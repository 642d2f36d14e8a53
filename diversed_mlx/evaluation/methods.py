"""The names by which methods are compared, and the models and verifiers behind them."""

import re
from decimal import Decimal

from ..errors import DiversedError
from ..head import EnsembleHead
from ..pair import Pair
from ..verifiers import Cascade, Dynamic, Lenient, Lossless, Static, Verifier
from .engine import Engine, Method
from .mlx_lm_engine import MlxLm

FORMS = (
    "none, draft, lossless, static:W, dynamic[:STRICTNESS], lenient:L, cascade-opt:ALPHA, cascade-token:ALPHA, mlx-lm"
)
MOST = 100  # methods of a range
NUMBER = r"[+-]?\d+(?:\.\d+)?"
RANGE = re.compile(rf"(?P<name>[^:]*):(?P<first>{NUMBER})\.\.(?P<last>{NUMBER}):(?P<step>{NUMBER})")


def expand(text: str) -> list[str]:
    """Read a list of methods.

    Args:
        text: names by commas; `static:0.5..1.0:0.1` stands for static:0.5, static:0.6 and so on to static:1.0, and
            so it does for every name that takes a number.

    Returns:
        The names, each once, in order.

    Raises:
        DiversedError: a range without a step above 0 or without an element.
    """
    return list(dict.fromkeys(name for part in text.split(",") for name in _expand_one(part.strip())))


def _expand_one(text: str) -> list[str]:
    if ".." not in text:
        return [text]
    found = RANGE.fullmatch(text)
    if found is None:
        raise DiversedError(f"{text}: a range looks like static:0.5..1.0:0.1, which is first..last:step")
    # Decimals, because 0.1 + 0.2 is to be called 0.3.
    first, last, step = (Decimal(found[key]) for key in ("first", "last", "step"))
    if step <= 0 or last < first or (last - first) / step >= MOST:
        raise DiversedError(f"{text}: a range goes up in steps above 0, {MOST} at most")
    return [f"{found['name']}:{first + i * step}" for i in range(int((last - first) / step) + 1)]


def make_method(name: str, pair: Pair, head: EnsembleHead | None = None) -> Method:
    """Make the method of a name.

    Args:
        name: one of `FORMS`; "none" is the target alone, "draft" the draft alone, and "mlx-lm" its own speculative
            decoding.
        pair: the models.
        head: what "dynamic" verifies with. Default None.

    Raises:
        DiversedError: as `make_verifier`, or a draft that is not there.
    """
    if name == "mlx-lm":
        return MlxLm(pair)
    if name == "draft":
        if pair.draft is None:
            raise DiversedError("draft needs a pair with a draft")
        return Engine(Pair(pair.draft), None)
    return Engine(pair, make_verifier(name, head))


def make_verifier(method: str, head: EnsembleHead | None = None) -> Verifier | None:
    """Make the verifier of a method's name.

    Args:
        method: one of `FORMS` but "draft" and "mlx-lm", such as "static:0.7".
        head: what "dynamic" verifies with. Default None.

    Returns:
        The verifier, None for "none", the target alone.

    Raises:
        DiversedError: another name, a number out of its range, or "dynamic" without a head.
    """
    name, _, text = method.partition(":")
    try:
        number = float(text) if text else None
    except ValueError:
        raise DiversedError(f"{method}: {text} is not a number; methods are {FORMS}") from None
    match name, number:
        case "none", None:
            return None
        case "lossless", None:
            return Lossless()
        case "static", float():
            return Static(target_weight=number)
        case "lenient", float():
            return Lenient(lenience=number)
        case "cascade-opt", float():
            return Cascade(alpha=number, rule="opt")
        case "cascade-token", float():
            return Cascade(alpha=number, rule="token")
        case "dynamic", _:
            if head is None:
                raise DiversedError(
                    f"{method} needs a trained head: train one for this pair with `diversed train`, or name it with "
                    "--head"
                )
            return Dynamic(head, strictness=number or 0.0)
    raise DiversedError(f"{method} is no method; methods are {FORMS}")
