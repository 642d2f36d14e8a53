"""What a draft and a target are to each other and to this machine, found out without reading their weights.

Checkpoints are loaded lazily, so that everything here, the caches at any context included, comes from configurations
and from the headers of the weights. The network is not used.
"""

from collections import Counter

from ..aliases import PAIRS
from ..cache import WindowKVCache
from ..errors import DiversedError
from ..heads import EMBEDDED_HEAD, find_head, load_head
from ..hub import cached, resolve
from ..lm import LM
from ..machine import USABLE, available_bytes
from ..pair import Pair
from ..tuning.store import conditions, find
from .finding import Finding, Level

CONTEXT = 4096  # tokens for which memory is counted where nothing is asked
MOST_TOKENS = 2**24
LARGE_DRAFT = 0.4  # of the target's weights


def check_models(
    target: str, draft: str | None, *, context: int | None = None, trust_remote_code: bool = False
) -> list[Finding]:
    """Look at a pair.

    Args:
        target: an alias, a folder or a Hub id.
        draft: the same; None for a target alone.
        context: tokens for which memory is counted. Default None: 4096, or as many as the pair holds.
        trust_remote_code: run Python code that comes with a checkpoint. Default False.
    """
    names = {"target": target} | ({"draft": draft} if draft is not None else {})
    findings: list[Finding] = []
    sources = {}
    for role, name in names.items():
        try:
            source = resolve(name)
            if cached(source) is None:
                findings.append(_absent(role, name, source))
            else:
                sources[role] = source
        except DiversedError as error:
            findings.append(_problem(role, str(error), "name a folder with a model of mlx-lm, or a Hub id"))
    if len(sources) < len(names):
        return [*findings, *_known_size(target, draft)]
    lms: dict[str, LM] = {}
    for role, source in sources.items():
        try:
            same = role == "draft" and source == sources["target"] and "target" in lms
            lms[role] = lms["target"] if same else LM.load(source, trust_remote_code=trust_remote_code, lazy=True)
            findings.append(_model(role, lms[role]))
        except DiversedError as error:
            remedy = "download or convert it again, or use another model"
            findings.append(_problem(role, str(error), remedy))
    if len(lms) < len(names):
        return findings
    return [*findings, *of_pair(lms["target"], lms.get("draft"), context)]


def of_pair(target: LM, draft: LM | None, context: int | None) -> list[Finding]:
    """Judge two models together: vocabulary, stops, caches, context, memory, head and measurements.

    Args:
        target: loaded, lazily or not.
        draft: the same, or None.
        context: tokens for which memory is counted, None for the default.
    """
    try:
        pair = Pair(target, draft)
    except DiversedError as error:
        remedy = "use a draft of the target's family and generation, with attention layers only"
        return [_problem("pair", str(error), remedy)]
    findings = [*_vocabulary(pair), *_caches(pair), _context(pair, context), _memory(pair, context)]
    if draft is not None:
        findings = [_sizes(target, draft), *findings, _head(pair), _tuned(pair)]
    return findings


def _sizes(target: LM, draft: LM) -> Finding:
    """A step of decoding reads all weights, so their ratio is about that of the times."""
    remedy = "use a smaller draft; diversed tune measures what it costs"
    if draft is target:
        found = "the draft is the target itself: every step of it costs a step of the target, so nothing can be gained"
        return Finding(level="note", subject="pair", found=found, remedy=remedy)
    share = draft.nbytes / target.nbytes
    found = f"a step of the draft reads {share:.0%} of what a step of the target reads"
    if share > LARGE_DRAFT:
        return Finding(level="note", subject="pair", found=f"{found}: too much to pay, most likely", remedy=remedy)
    return Finding(level="ok", subject="pair", found=found)


def _problem(subject: str, found: str, remedy: str) -> Finding:
    return Finding(level="problem", subject=subject, found=found, remedy=remedy)


def _absent(role: str, name: str, source: str) -> Finding:
    return _problem(
        role,
        f"{name} is not, or not wholly, in the local Hub cache"
        if name == source
        else f"{name} ({source}) is not, or not wholly, in the local Hub cache",
        f"hf download {source} (any command that uses it downloads it too)",
    )


def _known_size(target: str, draft: str | None) -> list[Finding]:
    """What is known of the memory of a pair that is not here."""
    sizes = {(of_draft, of_target): gb for of_draft, of_target, gb in PAIRS}
    if draft is None or (draft, target) not in sizes:
        return []
    size = sizes[draft, target]
    limit = USABLE * available_bytes() / 1e9
    if size > limit:
        return [_problem("memory", f"the pair takes {size} GB and models may use {limit:.1f}", "use a smaller pair")]
    return [Finding(level="ok", subject="memory", found=f"the pair takes {size} GB of the {limit:.1f} for models")]


def _model(role: str, lm: LM) -> Finding:
    found = (
        f"{lm.name}: {lm.config.get('model_type')}, {len(lm.make_cache().layers)} layers, {lm.number_format}, "
        f"{_size(lm.nbytes)}, hidden states {lm.hidden_size} wide"
    )
    return Finding(level="ok", subject=role, found=found)


def _vocabulary(pair: Pair) -> list[Finding]:
    lms = [("target", pair.target), *([("draft", pair.draft)] if pair.draft is not None else [])]
    widths = ", ".join(f"{role} {lm.logits_size} logits and {len(lm.tokenizer.get_vocab())} tokens" for role, lm in lms)
    shared = pair.vocab_size if pair.draft is None else f"ids below {pair.vocab_size} shared"
    findings = [Finding(level="ok", subject="vocabulary", found=f"{shared}; {widths}")]
    texts = [repr(pair.tokenizer.convert_ids_to_tokens(token)) for token in sorted(pair.stop_tokens)]
    if not texts:
        remedy = "end answers with --max-tokens or --stop"
        findings.append(Finding(level="note", subject="stop tokens", found="none", remedy=remedy))
    elif pair.draft is not None and set(pair.draft.tokenizer.eos_token_ids) != set(pair.target.tokenizer.eos_token_ids):
        own = sorted(pair.draft.tokenizer.eos_token_ids)
        found = f"{', '.join(texts)}, the target's; the draft's own are {own} and do not count"
        findings.append(Finding(level="note", subject="stop tokens", found=found))
    else:
        findings.append(Finding(level="ok", subject="stop tokens", found=", ".join(texts)))
    if not pair.tokenizer.has_chat_template:
        remedy = "use diversed generate, or an instruction-tuned target"
        findings.append(
            Finding(level="note", subject="chat template", found="the target has none: it cannot chat", remedy=remedy)
        )
    return findings


def _caches(pair: Pair) -> list[Finding]:
    told = []
    for role, lm in (("target", pair.target), ("draft", pair.draft)):
        if lm is None:
            continue
        kinds = Counter(
            f"windows of {layer.max_size}" if isinstance(layer, WindowKVCache) else type(layer).__name__
            for layer in lm.make_cache().layers
        )
        told.append(f"{role} {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    unable = pair.target.make_cache().unrewindable()
    if unable:  # a target alone; a pair of such models is refused
        remedy = "use it with --verifier none, or take a model with attention layers only"
        found = f"{'; '.join(told)}: cannot take part in speculative decoding"
        return [Finding(level="note", subject="caches", found=found, remedy=remedy)]
    return [Finding(level="ok", subject="caches", found=f"{'; '.join(told)}; all can be rewound")]


def _context(pair: Pair, context: int | None) -> Finding:
    lms = [("target", pair.target), *([("draft", pair.draft)] if pair.draft is not None else [])]
    told = ", ".join(f"{role} {lm.context_length or 'not said'}" for role, lm in lms)
    if pair.context_length is not None and context is not None and context > pair.context_length:
        found = f"{told}: the pair holds {pair.context_length} tokens, not the {context} asked for"
        return Finding(level="note", subject="context", found=found, remedy="keep conversations shorter than that")
    return Finding(level="ok", subject="context", found=f"{told} tokens")


def _memory(pair: Pair, context: int | None) -> Finding:
    context = min(context or CONTEXT, pair.context_length or MOST_TOKENS)
    lms = [pair.target, *([pair.draft] if pair.draft is not None else [])]
    weights = sum(lm.nbytes for lm in set(lms))  # one model in both roles is loaded once and has two caches
    caches = sum(lm.cache_bytes(context) for lm in lms)
    limit = available_bytes()
    found = (
        f"{_size(weights)} of weights and {_size(caches)} of caches at {context} tokens, of {_size(limit)} for models"
    )
    if weights > USABLE * limit:
        fitting = [f"--draft {draft} --target {target}" for draft, target, gb in PAIRS if gb * 1e9 <= USABLE * limit]
        return _problem("memory", found, f"use {fitting[0] if fitting else 'smaller models'}")
    if weights + caches > limit:
        fits = int(context * (limit - weights) / caches)
        remedy = f"about {fits} tokens fit: --max-kv-size {max(fits, 16)}, --kv-bits 8, or smaller models"
        return _problem("memory", found, remedy)
    return Finding(level="ok", subject="memory", found=found)


def _head(pair: Pair) -> Finding:
    found = find_head(pair)
    if found is None:
        assert pair.draft is not None
        remedy = f"diversed train gsm8k --draft {pair.draft.name} --target {pair.target.name}"
        return Finding(
            level="note", subject="head", found="none for this pair: decoding is lossless by default", remedy=remedy
        )
    try:
        task = load_head(found, pair).metadata.get("task")
    except DiversedError as error:
        return _problem("head", str(error), f"remove {found}, or say --verifier lossless")
    where = "ships with the pair" if found == EMBEDDED_HEAD else str(found)
    return Finding(level="ok", subject="head", found=where + (f", trained for {task}" if task else ""))


def _tuned(pair: Pair) -> Finding:
    wanted = conditions(pair)
    holding, stale = find(wanted)
    assert pair.draft is not None
    remedy = f"diversed tune --draft {pair.draft.name} --target {pair.target.name}"
    level: Level = "note"
    if not holding and not stale:
        return Finding(level=level, subject="draft length", found="not measured here yet", remedy=remedy)
    if not holding:
        differs = [
            word
            for key, word in (
                ("machine", "on another machine"),
                ("versions", "with other versions of MLX"),
                ("draft_format", "with another number format of the draft"),
                ("target_format", "with another number format of the target"),
            )
            if stale[0].get(key) != wanted[key]
        ]
        found = f"what was measured on {stale[0].get('measured')} is ignored: it was {' and '.join(differs)}"
        return Finding(level=level, subject="draft length", found=found, remedy=remedy)
    told = [f"measured on {holding[0].get('measured')} for {holding[0]['verifier']}"]
    try:
        for each in holding[0]["temperatures"]:
            length = int(each["recommended"])
            told.append(f"at temperature {each['temp']:g} " + (f"{length} drafted" if length else "plain decoding"))
    except (KeyError, TypeError, ValueError):
        return Finding(level=level, subject="draft length", found="what was measured cannot be read", remedy=remedy)
    return Finding(level="ok", subject="draft length", found=", ".join(told))


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:.1f} MB"
