"""The names by which methods are compared, and the models and verifiers behind them."""

from dataclasses import dataclass

from ..errors import DiversedError
from ..head import EnsembleHead
from ..pair import Pair
from ..verifiers import Cascade, Dynamic, Lenient, Lossless, Static, Verifier

FORMS = "none, draft, lossless, static:W, dynamic[:STRICTNESS], lenient:L, cascade-opt:ALPHA, cascade-token:ALPHA"


@dataclass(frozen=True)
class Method:
    """A way to answer.

    Args:
        pair: the models that take part.
        verifier: how drafts are checked; None decodes with the pair's target alone.
    """

    pair: Pair
    verifier: Verifier | None


def make_method(name: str, pair: Pair, head: EnsembleHead | None = None) -> Method:
    """Make the method of a name.

    Args:
        name: one of `FORMS`; "none" is the target alone and "draft" the draft alone.
        pair: the models.
        head: what "dynamic" verifies with. Default None.

    Raises:
        DiversedError: as `make_verifier`, or a draft that is not there.
    """
    if name == "draft":
        if pair.draft is None:
            raise DiversedError("draft needs a pair with a draft")
        return Method(Pair(pair.draft), None)
    return Method(pair, make_verifier(name, head))


def make_verifier(method: str, head: EnsembleHead | None = None) -> Verifier | None:
    """Make the verifier of a method's name.

    Args:
        method: one of `FORMS` but "draft", such as "static:0.7".
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
