"""What a checkpoint's config says, put so that mlx-lm reads it as transformers does.

transformers 5 writes the rotary embedding as `rope_parameters` alone, and which layers attend through a window as
`layer_types` alone. Most of mlx-lm's architectures look for the older names, and take their defaults without a word
where those are missing. Here the fields of an architecture's arguments decide what it is told, and a config that they
cannot express is refused. This file knows fields, not arithmetic: not that mlx-lm computes yarn without `truncate` and
longrope without the factors for short texts, nor that some architectures let a window pass and attend to everything.
"""

import math
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, NamedTuple

from mlx_lm.utils import _get_classes

from .errors import DiversedError

# The fields of mlx-lm's architectures that hold one number of the rotary embedding.
THETA = ("rope_theta", "rotary_emb_base")
LOCAL_THETA = ("rope_local_base_freq", "rope_local_theta", "swa_rope_theta")
FRACTION = ("partial_rotary_factor", "rotary_pct")
# Nothing is scaled; mrope sets image positions apart, and a text has none.
UNSCALED = ("default", "mrope")

# What reads the `text_config` of a wrapper. Those whose language model reads rope_parameters by itself are left alone.
TEXT_ARGS = {
    "gemma3": "gemma3_text.ModelArgs",
    "gemma3n": "gemma3n.TextConfig",
    "kimi_k25": "deepseek_v3.ModelArgs",
    "kimi_vl": "kimi_vl.TextArgs",
    "lfm2-vl": "lfm2.ModelArgs",
    "llama4": "llama4.TextArgs",
    "pixtral": "llama.ModelArgs",
    "qwen2_vl": "qwen2.ModelArgs",
    "qwen3_vl_moe": "qwen3_moe.ModelArgs",
}
# The kinds of scaling an architecture computes, where it silently drops or misreads others that its fields can hold.
SCALINGS = {
    "deepseek": ("linear",),
    "deepseek_v2": ("yarn", "deepseek_yarn"),
    "gemma3n": (),
    "glm4_moe": (),
    "granitemoehybrid": (),
    "lfm2": (),
    "lfm2_moe": (),
    "mellum": ("yarn", "llama3", "dynamic", "longrope"),
    "minicpm3": ("longrope", "su"),
    "mixtral": (),
    "muse_glimmer": (),
    "olmo_hybrid": (),
    "phi3": ("longrope", "su", "linear"),
    "qwen2_moe": (),
    "qwen3_moe": (),
    "solar_open": (),
    "spark2_5": (),
}
# What an architecture computes with, whatever the config says.
FIXED_THETA = {"phixtral": 10000.0, "plamo2": 10000.0, "qwen": 10000.0, "recurrent_gemma": 10000.0}
FIXED_FRACTION = {"glm": 1.0, "mellum": 1.0, "recurrent_gemma": 0.5}


class Rope(NamedTuple):
    """The rotary embedding of a layer; None where the config is silent, and for a scaling that changes nothing."""

    theta: float | None
    fraction: float | None
    scaling: dict[str, Any] | None


def faithful_config(config: dict[str, Any]) -> dict[str, Any]:
    """Find what must change in a config so that mlx-lm builds the model that transformers would.

    Args:
        config: what `mlx_lm.utils.load_config` returns; it is left as it is.

    Returns:
        The `model_config` for `mlx_lm.utils.load_model`; empty where nothing must change.

    Raises:
        DiversedError: mlx-lm's architecture lacks something that the config asks for.
        ValueError: mlx-lm does not have the architecture.
    """
    if config.get("model_file"):  # the checkpoint brings its own code, of which nothing is known here
        return {}
    text, args = _description(config)
    known = {field.name: field.default for field in fields(args)}
    name = _module(args)
    overrides = _rope_overrides(text, known, name) | _layer_overrides(text, known, name)
    if _absent("num_experts", text, known) and "num_local_experts" in text:  # renamed by transformers 5
        overrides["num_experts"] = text["num_local_experts"]
    return overrides if text is config or not overrides else {"text_config": text | overrides}


def _module(args: type) -> str:
    return args.__module__.rpartition(".")[2]


def _absent(field: str, text: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether mlx-lm demands a field that the config does not have."""
    return known.get(field) is MISSING and field not in text


def _description(config: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The part of a config that describes the language model, and the dataclass of mlx-lm that reads it."""
    args: Any = _get_classes(config)[1]
    text = config.get("text_config", config)  # older configs of some wrappers are flat
    if _module(args) == "mistral3":  # goes by the model_type inside
        return text, _get_classes({"model_type": "llama"} | text)[1]
    if place := TEXT_ARGS.get(_module(args)):
        module, name = place.split(".")
        return text, getattr(import_module(f"mlx_lm.models.{module}"), name)
    return config, args


def _first(names: tuple[str, ...], values: dict[str, Any]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _scaling(params: dict[str, Any]) -> dict[str, Any] | None:
    kind = params.get("rope_type", params.get("type", "default"))
    if kind in UNSCALED:
        return None
    # Both names of the kind, for each is read somewhere.
    return {k: v for k, v in params.items() if k not in ("rope_theta", *FRACTION)} | {"type": kind, "rope_type": kind}


def _rope(params: dict[str, Any], text: dict[str, Any], thetas: tuple[str, ...] = THETA) -> Rope:
    scaling = _scaling(params)
    original = _first(("original_max_position_embeddings", "max_position_embeddings"), text)
    if scaling and original and scaling["rope_type"] in ("llama3", "yarn"):  # else mlx-lm takes a fixed number
        scaling = {"original_max_position_embeddings": original} | scaling
    theta = params.get("rope_theta", _first(thetas, text))
    return Rope(theta, params.get("partial_rotary_factor", _first(FRACTION, text)), scaling)


def _ropes(text: dict[str, Any], name: str) -> tuple[Rope, Rope | None]:
    """The rotary embedding as transformers reads it, and that of the layers with a window where it stands apart.

    Where a config says a thing twice, transformers prefers rope_scaling to rope_parameters, and what is inside
    either to the same name outside.
    """
    params, legacy = text.get("rope_parameters") or {}, text.get("rope_scaling") or {}
    by_type = {kind: rope for kind, rope in params.items() if isinstance(rope, dict)}
    if not by_type:
        return _rope(legacy or params, text), None
    used = {kind: rope for kind, rope in by_type.items() if kind in (text.get("layer_types") or ())} or by_type
    local = used.pop("sliding_attention", None)
    full, *others = [_rope(rope | legacy, text) for rope in used.values()] or [_rope(local or {}, text)]
    if any(rope != full for rope in others):
        raise _refusal(name, f"has one rotary embedding for layers of the types {' and '.join(used)}, not several")
    return full, _rope(local, text, LOCAL_THETA + THETA) if local else None


def _refuse_dropped(rope: Rope, name: str, scalable: bool) -> None:
    if rope.theta not in (None, FIXED_THETA.get(name, rope.theta)):
        raise _refusal(name, f"always has the rotary theta {FIXED_THETA[name]}, not {rope.theta}")
    if rope.fraction not in (None, FIXED_FRACTION.get(name, rope.fraction)):
        raise _refusal(name, f"always rotates {FIXED_FRACTION[name]} of each head, not {rope.fraction}")
    if rope.scaling is None:
        return
    kind = rope.scaling["rope_type"]
    if not scalable or kind not in SCALINGS.get(name, (kind,)):
        raise _refusal(name, f"does not scale positions by {kind!r}")
    asked, factor = rope.scaling.get("attention_factor"), rope.scaling.get("factor", 1.0)
    if kind == "yarn" and asked is not None and factor > 1:
        mscale, all_dim = rope.scaling.get("mscale", 1.0), rope.scaling.get("mscale_all_dim", 0.0)
        computed = (1 + 0.1 * mscale * math.log(factor)) / (1 + 0.1 * all_dim * math.log(factor))
        if not math.isclose(asked, computed, rel_tol=1e-4):
            raise _refusal(name, f"computes the attention_factor of yarn, here {computed:.4f}, not {asked}")


def _rope_overrides(text: dict[str, Any], known: dict[str, Any], name: str) -> dict[str, Any]:
    has_theta = any(field in known for field in THETA)
    reads_parameters = "rope_parameters" in known
    full, local = _ropes(text, name)
    for rope in (full, local or full):
        _refuse_dropped(rope, name, not has_theta or reads_parameters or "rope_scaling" in known)
    if not has_theta:  # reads rope_parameters and nothing else, or has no rotary embedding
        return {}

    # An architecture with both takes from rope_parameters what is not at the top; exaone_moe takes only the theta.
    own = (text.get("rope_parameters") or {}) if reads_parameters else {}
    overrides: dict[str, Any] = {}

    def tell(names: tuple[str, ...], value: float | None, found: float | None = None) -> None:
        for field in names:
            if field in known and value is not None and text.get(field, found or known[field]) != value:
                overrides[field] = value

    tell(THETA, full.theta, own.get("rope_theta"))
    tell(FRACTION, full.fraction, own.get("partial_rotary_factor"))
    found = _scaling(text.get("rope_scaling") or (own if name != "exaone_moe" else {}))
    if "rope_scaling" in known and (found != full.scaling or _absent("rope_scaling", text, known)):
        overrides["rope_scaling"] = full.scaling
    if local is None:
        return overrides

    # An architecture with a theta for layers with a window scales the others only, and olmo3 does too.
    apart = any(field in known for field in LOCAL_THETA)
    tell(LOCAL_THETA, local.theta)
    scaling = None if apart or name == "olmo3" else full.scaling
    possible = Rope(local.theta if apart else full.theta, full.fraction or 1.0, scaling)
    for field, asked, has in zip(Rope._fields, local._replace(fraction=local.fraction or 1.0), possible, strict=True):
        if asked != has:
            raise _refusal(name, f"has the rotary {field} {has} in layers with a window, not {asked}")
    return overrides


def _layer_overrides(text: dict[str, Any], known: dict[str, Any], name: str) -> dict[str, Any]:
    types = text.get("layer_types") or []
    if name == "granitemoehybrid":
        older = [{"linear_attention": "mamba", "full_attention": "attention"}.get(kind, kind) for kind in types]
        overrides: dict[str, Any] = {} if older == types else {"layer_types": older}
        if text.get("position_embedding_type", "rope") is None:  # mlx-lm's word for none is another
            overrides["position_embedding_type"] = "nope"
        return overrides
    if not types or "layer_types" in known or "sliding_window_pattern" not in known:
        return {}

    windows = [kind == "sliding_attention" for kind in types]
    told = text.get("sliding_window_pattern", known["sliding_window_pattern"])
    if name == "exaone4":  # one letter a layer, repeated as often as needed, and none where there is no window
        letters = "".join("L" if window else "G" for window in windows)
        same = (str(told) * len(letters))[: len(letters)] == letters
        return {} if same or not text.get("sliding_window") else {"sliding_window_pattern": letters}
    period = windows.index(False) + 1 if False in windows else 0
    for each in (told, period):
        if each and windows == [i % each > 0 for i in range(1, len(windows) + 1)]:
            return {} if each == told else {"sliding_window_pattern": each}
    raise _refusal(name, "has layers without a window at regular distances only, unlike the layer_types of this config")


def _refusal(name: str, what: str) -> DiversedError:
    return DiversedError(f"mlx-lm's {name} {what}: its answers would be wrong; use another checkpoint")
