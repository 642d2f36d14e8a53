"""Do MLX and PyTorch say the same of a pair? The same checkpoints, prompts and uniforms in both, and the differences.

Numbers first: hidden states, logits, probabilities, TV and w at every position of the same texts. Then decisions: the
same drafted tokens and uniforms, verified in both. Then whole greedy texts of both engines, and of transformers' own
assisted generation for static weights. What counts as equal stands in `TOLERANCES`. This file measures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from diversed_mlx import acceptance, verifiers
from diversed_mlx.convert import reference, reference_loop
from diversed_mlx.convert.both import (
    TextLength,
    assistable,
    generate_assisted,
    generate_ours,
    generate_theirs,
    to_numpy,
    to_torch,
)
from diversed_mlx.errors import DiversedError
from diversed_mlx.head import EnsembleHead
from diversed_mlx.lm import LM
from diversed_mlx.pair import Pair
from diversed_mlx.sampling import Sampling

torch = reference.torch

PROMPTS = (
    "The capital of France is", "Water boils at", "List three primary colours:", "def fibonacci(n):",
    "1, 1, 2, 3, 5, 8,",
    "Once upon a time there was a", "The three states of matter are", "To make a cup of tea, first",
    "The opposite of hot is", "A haiku about the sea:", "The derivative of x^2 is", "Dear Sir or Madam,",
    "The largest planet of the solar system", "Q: What is 12 plus 30?\nA:", "import numpy as np\n",
    "The French word for bread is", "In 1969, two people", "Photosynthesis is the process by which",
    "If it rains tomorrow, we", "SELECT name FROM",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The largest differences that a type of number explains.

    Args:
        relative: of hidden states and logits, as a share of the largest value.
        probability: of p, q, w and TV.
        decisions: least share of equal accept decisions.
        why: the reason for these numbers.
    """

    relative: float
    probability: float
    decisions: float
    why: str


TOLERANCES = {
    "float32": Tolerance(
        relative=1e-3, probability=1e-3, decisions=0.999,
        why="24 binary digits: the order of summation moves the last few, and layers add up to some 1e-5",
    ),
    "float16": Tolerance(
        relative=3e-2, probability=5e-2, decisions=0.97,
        why="11 binary digits: each matrix product rounds to 5e-4 of its size, in another order in each framework",
    ),
    "bfloat16": Tolerance(
        relative=1.5e-1, probability=2e-1, decisions=0.9,
        why="8 binary digits: each matrix product rounds to 4e-3 of its size, in another order in each framework",
    ),
}  # fmt: skip

Method = tuple[str, verifiers.Verifier, reference.Verifier]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison.

    Args:
        what: is compared.
        value: the largest difference or the share that is equal.
        limit: what `value` may be at most, or must be at least.
        at_least: whether the limit is a lower one.
        detail: what to know beside it.
    """

    what: str
    value: float
    limit: float
    at_least: bool = False
    detail: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value keeps its limit; a value that is no number does not."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to compare.

    Args:
        prompts: texts.
        length: of the greedy texts.
        positions: most positions at which decisions are compared.
        seed: of the uniforms.
    """

    prompts: Sequence[str] = PROMPTS
    length: TextLength = field(default_factory=TextLength)
    positions: int = 5000
    seed: int = 0


def made_up_head(draft_size: int, target_size: int) -> EnsembleHead:
    """Make a head whose weights vary widely, where no trained one was named.

    Args:
        draft_size: width of the draft's hidden state.
        target_size: width of the target's hidden state.
    """
    head = EnsembleHead(draft_size, target_size)
    width = draft_size + target_size
    head.summary.weight = mx.random.normal((2, width), key=mx.random.key(1)) / width**0.5
    return head


def compare(
    ours: Pair,
    theirs: "reference_loop.TorchPair",
    head: EnsembleHead,
    dtype: str,
    plan: Plan,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Compare both frameworks on one pair.

    Args:
        ours: the pair in MLX.
        theirs: the same in PyTorch.
        head: for the weight w and the dynamic verifier.
        dtype: the type that both compute in, a key of TOLERANCES.
        plan: how much to compare.
        progress: told what is being done.

    Returns:
        The rows of the table.

    Raises:
        DiversedError: prompts that no model can read.
    """
    tolerance = TOLERANCES[dtype]
    torch_head = to_torch(head).to(theirs.target.device)
    methods = _methods(head, torch_head)
    prompts = [ours.tokenizer.encode(prompt) for prompt in plan.prompts]
    if not all(prompts):
        raise DiversedError("a prompt is empty")
    texts, rows = _greedy_rows(ours, theirs, methods, prompts, plan, progress)
    progress("comparing hidden states, logits and decisions")
    return _numbers(ours, theirs, head, torch_head, methods, texts, tolerance, plan) + rows


def _methods(head: EnsembleHead, torch_head: "reference.EnsembleHead") -> list[Method]:
    pairs: list[Method] = [("lossless", verifiers.Lossless(), reference.Lossless())]
    for w in (0.5, 0.8):
        pairs.append((f"static:{w}", verifiers.Static(target_weight=w), reference.Static(target_weight=w)))
    pairs.append(("dynamic", verifiers.Dynamic(head), reference.Dynamic(torch_head)))
    pairs.append(("lenient:0.5", verifiers.Lenient(), reference.Lenient()))
    pairs.append(("cascade-opt:0.2", verifiers.Cascade(), reference.Cascade()))
    pairs.append(("cascade-token:0.2", verifiers.Cascade(rule="token"), reference.Cascade(rule="token")))
    return pairs


# Numbers and decisions ------------------------------------------------------------------------------------------------


@dataclass
class _Largest:
    """The largest of differences that come a text at a time."""

    value: float = 0.0

    def add(self, one: np.ndarray, other: np.ndarray, scale: float = 1.0) -> None:
        # fmax would hide a NaN, which must not pass.
        self.value = float(np.maximum(self.value, np.abs(one - other).max() / scale))


def _numbers(
    ours: Pair,
    theirs: "reference_loop.TorchPair",
    head: EnsembleHead,
    torch_head: "reference.EnsembleHead",
    methods: list[Method],
    texts: list[list[int]],
    tolerance: Tolerance,
    plan: Plan,
) -> list[Row]:
    assert ours.draft is not None
    differences = {
        what: _Largest()
        for what in ("draft hidden", "target hidden", "draft logits", "target logits", "p", "q", "TV", "w")
    }
    counts = {name: [0, 0, 0] for name, *_ in methods}  # equal, different, different without being a tie
    greedy_counts = {name: [0, 0, 0] for name, *_ in methods}
    generator = np.random.default_rng(plan.seed)
    left = plan.positions
    for text in texts:
        if left <= 0:
            break
        text = text[: max(left, 1)]
        left -= len(text)
        sides = {
            "draft": (_read(ours, ours.draft, text), _read_torch(theirs, theirs.draft, text)),
            "target": (_read(ours, ours.target, text), _read_torch(theirs, theirs.target, text)),
        }
        for role, ((h, z), (th, tz)) in sides.items():
            differences[f"{role} hidden"].add(to_numpy(h), th.float().cpu().numpy(), float(th.abs().max()))
            mine, other = to_numpy(z), tz.float().cpu().numpy()
            finite = np.isfinite(other)
            differences[f"{role} logits"].add(mine[finite], other[finite], float(np.abs(other[finite]).max()))
        (dh, dz), (tdh, tdz) = sides["draft"]
        (h, z), (th, tz) = sides["target"]
        sampling, torch_sampling = Sampling(), reference.Sampling()
        q, p = sampling.probabilities(dz), sampling.probabilities(z)
        tq, tp = torch_sampling.probabilities(tdz), torch_sampling.probabilities(tz)
        differences["q"].add(to_numpy(q), tq.cpu().numpy())
        differences["p"].add(to_numpy(p), tp.cpu().numpy())
        differences["TV"].add(to_numpy(0.5 * mx.abs(p - q).sum(-1)), (0.5 * (tp - tq).abs().sum(-1)).cpu().numpy())
        differences["w"].add(to_numpy(head(dh, h)), torch_head(tdh, th).cpu().numpy())
        draws, uniforms = (generator.random(len(text), dtype=np.float32) for _ in range(2))
        for greedy, counted in ((False, counts), (True, greedy_counts)):
            tokens = mx.argmax(dz, axis=-1) if greedy else acceptance.draw(q, mx.array(draws))
            evidence = verifiers.Evidence(
                tokens=tokens, q=q, p=p, target_logits=z, draft_hidden=dh, target_hidden=h, greedy=greedy
            )
            torch_evidence = reference.Evidence(
                tokens=torch.tensor(np.array(tokens).astype(np.int64), device=tp.device),
                q=tq, p=tp, target_logits=tz, draft_hidden=tdh, target_hidden=th, greedy=greedy,
            )  # fmt: skip
            for name, verifier, torch_verifier in methods:
                allowed, torch_allowed = verifier(evidence), torch_verifier(torch_evidence)
                known = np.zeros(len(text), np.float32) if greedy else uniforms  # 0 or 1 is compared with 0
                _count(verifier, evidence, allowed, torch_allowed, known, tolerance.relative, counted[name])
    rows = [
        Row(
            what=f"{what}, largest difference",
            value=largest.value,
            limit=tolerance.relative if "hidden" in what or "logits" in what else tolerance.probability,
            detail="of the largest value" if "hidden" in what or "logits" in what else "",
        )
        for what, largest in differences.items()
    ]
    for kind, counted in (("temp 1", counts), ("greedy", greedy_counts)):
        for name, (equal, different, unexplained) in counted.items():
            total = equal + different
            rows.append(
                Row(
                    what=f"accept decisions, {name}, {kind}",
                    value=equal / total if unexplained == 0 else -1.0,
                    limit=tolerance.decisions,
                    at_least=True,
                    detail=f"{equal} of {total} equal" + _ties(different, unexplained),
                )
            )
    return rows


def _ties(different: int, unexplained: int) -> str:
    if unexplained:
        return f"; {unexplained} differ and are no ties"
    return f"; {different} ties" if different else ""


def _count(
    verifier: verifiers.Verifier,
    evidence: verifiers.Evidence,
    ours: acceptance.Allowance,
    theirs: "reference.Allowance",
    uniforms: np.ndarray,
    relative: float,
    counts: list[int],
) -> None:
    """Count equal decisions, and among the others those that are no ties."""
    accept, torch_accept = to_numpy(ours.accept), theirs.accept.float().cpu().numpy()
    tokens = np.array(evidence.tokens)
    differ = np.flatnonzero((uniforms < accept) != (uniforms < torch_accept))
    counts[0] += len(uniforms) - len(differ)
    counts[1] += len(differ)
    for position in differ.tolist():
        p, q = to_numpy(evidence.p[position]), to_numpy(evidence.q[position])
        token = int(tokens[position])
        compared = _compared(verifier, evidence.greedy, p, q, token)
        if evidence.greedy:
            scores = p if isinstance(verifier, verifiers.Lossless) else to_numpy(ours.correction[position])
            compared.append(tuple(np.sort(scores)[-2:].tolist()))
        else:
            compared.append((float(accept[position]), float(torch_accept[position])))
        counts[2] += not any(abs(a - b) <= relative * max(abs(a), abs(b)) for a, b in compared)


def _compared(
    verifier: verifiers.Verifier, greedy: bool, p: np.ndarray, q: np.ndarray, token: int
) -> list[tuple[float, ...]]:
    """The numbers whose order decides, where a rule has a threshold: equal ones are a tie."""
    match verifier:
        case verifiers.Cascade(alpha=alpha, rule="opt"):
            return [(float(q.max()), float(p.max() - alpha * 0.5 * np.abs(p - q).sum()))]
        case verifiers.Cascade(alpha=alpha):
            return [(float(p[token]), float((1 - alpha) * p.max()))]
        case verifiers.Lenient(lenience=lenience) if greedy:
            return [(float(p[token]), float(lenience * p.max()))]
    return []


def _read(pair: Pair, lm: LM, text: list[int]) -> tuple[mx.array, mx.array]:
    hidden, logits = lm(mx.array(text), lm.make_cache())
    return hidden, pair.shared_logits(logits)


def _read_torch(pair: "reference_loop.TorchPair", lm: "reference_loop.TorchLM", text: list[int]) -> tuple[Any, Any]:
    hidden, logits = lm(text)
    return hidden, pair.shared_logits(logits)


# Greedy texts ---------------------------------------------------------------------------------------------------------


def _greedy_rows(
    ours: Pair,
    theirs: "reference_loop.TorchPair",
    methods: list[Method],
    prompts: list[list[int]],
    plan: Plan,
    progress: Callable[[str], None],
) -> tuple[list[list[int]], list[Row]]:
    """Greedy texts of both engines, and the positions' texts that the numbers are then compared on."""
    texts, rows = [], []
    for name, verifier, torch_verifier in methods[:4]:
        equal, assisted = 0, 0
        weight = verifier.target_weight if isinstance(verifier, verifiers.Static) else None
        with_assisted = weight is not None and assistable(theirs)
        for number, prompt in enumerate(prompts):
            progress(f"greedy texts, {name}: {number + 1} of {len(prompts)}")
            mine = generate_ours(ours, prompt, verifier, plan.length)
            equal += mine == generate_theirs(theirs, prompt, torch_verifier, plan.length)
            if with_assisted:
                assert weight is not None
                assisted += mine == generate_assisted(theirs, prompt, weight, plan.length)
            texts.append(prompt + mine)
        what = f"greedy texts, {name}"
        for other, count, wanted in (("the reference", equal, True), ("transformers", assisted, with_assisted)):
            if wanted:
                rows.append(
                    Row(
                        what=f"{what} = {other}", value=count / len(prompts), limit=1.0, at_least=True,
                        detail=f"{count} of {len(prompts)}, {plan.length.max_tokens} tokens each",
                    )
                )  # fmt: skip
    return texts, rows
