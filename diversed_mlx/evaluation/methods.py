"""The names by which methods are compared, and the verifiers behind them."""

from ..errors import DiversedError
from ..head import EnsembleHead
from ..verifiers import Cascade, Dynamic, Lenient, Lossless, Static, Verifier

FORMS = "none, lossless, static:W, dynamic[:STRICTNESS], lenient:L, cascade-opt:ALPHA, cascade-token:ALPHA"


def make_verifier(method: str, head: EnsembleHead | None = None) -> Verifier | None:
    """Make the verifier of a method's name.

    Args:
        method: one of `FORMS`, such as "static:0.7".
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
                raise DiversedError(f"{method} needs a trained head")
            return Dynamic(head, strictness=number or 0.0)
    raise DiversedError(f"{method} is no method; methods are {FORMS}")
