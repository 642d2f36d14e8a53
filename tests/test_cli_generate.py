"""`diversed generate` in this process: what lands on stdout and stderr, and that it is what the library gives."""

import json
import math
import re
import shutil
from typing import Any
from unittest import mock

import mlx.core as mx
import pytest
from tiny import CHAT_TEMPLATE, LLAMA, write_model, write_tokenizer
from typer.testing import CliRunner

from diversed_mlx import (
    Cascade,
    Dynamic,
    EnsembleHead,
    Lenient,
    Lossless,
    Sampling,
    Static,
    load_head,
    load_pair,
    stream_generate,
)
from diversed_mlx.cli.main import app
from diversed_mlx.cli.printer import PlainScreen
from diversed_mlx.conversation import chat_prompt
from diversed_mlx.lm import LM

STATS = {
    "prompt_tokens", "cached_tokens", "generated_tokens", "rounds", "proposed", "accepted", "acceptance_rate",
    "tokens_per_round", "mean_target_weight", "prompt_tps", "generation_tps", "peak_memory_gb",
}  # fmt: skip
LOSSLESS_NOTE = "no head was trained for this pair: decoding is lossless (name a head with --head)"


def run(*args: object, input: str | bytes | None = None, code: int | None = 0, home: object = "/nowhere", **env: str):
    """Run `diversed` in this process, without network, and check its exit status if told.

    An exception that is no exit fails the test.
    """
    env = {"DIVERSED_HOME": str(home), "COLUMNS": "300", **env}
    with mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True):
        outcome = CliRunner().invoke(app, [str(arg) for arg in args], input=input, env=env, catch_exceptions=False)
    assert code is None or outcome.exit_code == code, outcome.stderr
    return outcome


def generate(checkpoints, *args: object, draft: str = "draft", target: str = "target", **settings):
    """Run `diversed generate` with a pair of tiny models."""
    models = ("--draft", checkpoints[draft], "--target", checkpoints[target])
    return run("generate", *models, *args, **settings)


def answer(checkpoints, *args: object, **settings) -> dict[str, Any]:
    """The object that `diversed generate -p hi --json` prints."""
    outcome = generate(checkpoints, "-p", "hi", "--json", *args, **settings)
    assert outcome.stdout.endswith("}\n")
    assert outcome.stdout.count("\n") == 1
    return json.loads(outcome.stdout)


def library(pair, prompt: str | list[int] = "hi", system: str | None = None, **options: Any) -> dict[str, Any]:
    """The same object from the library; a text is put into the chat template."""
    if isinstance(prompt, str):
        prompt = chat_prompt(pair, [{"role": "user", "content": prompt}], system)
    options.setdefault("sampling", Sampling(temp=0.0))
    responses = list(stream_generate(pair, prompt, **options))
    return {
        "text": "".join(r.text for r in responses),
        "tokens": [r.token for r in responses],
        "finish_reason": responses[-1].finish_reason,
    }


def without_stats(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "stats"}


def save_head(folder, bias: float, names: tuple[str, str] | None = None, size: int = 32) -> str:
    """Save a head whose weight on the target is sigmoid(2 bias) at every position; return its folder."""
    head = EnsembleHead(size, 32, {"pair": {"draft": names[0], "target": names[1]}} if names else None)
    head.summary.bias = mx.array([-float(bias), float(bias)])
    head.save(folder)
    return str(folder)


def write_wide(root) -> dict[str, Any]:
    """Write checkpoints with heads 64 wide, which is what a quantised cache takes."""
    config = LLAMA | {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    return {"target": write_model(root / "target", config), "draft": write_model(root / "draft", config, noise=0.15)}


def watch_passes(monkeypatch) -> list[int]:
    """Return the numbers of tokens that the models read in each forward pass; it grows as they happen."""
    lengths = []
    forward = LM.__call__

    def watched(self, tokens, cache):
        lengths.append(tokens.shape[0])
        return forward(self, tokens, cache)

    monkeypatch.setattr(LM, "__call__", watched)
    return lengths


# What is printed where


def figures(stats) -> str:
    """The line of figures behind an answer, as a pattern."""
    return (
        rf"{stats.generated_tokens} tokens \| [\d.]+ tok/s"
        rf" \| acceptance {stats.acceptance_rate:.1%} \({stats.accepted}/{stats.proposed}\)"
        rf" \| {stats.tokens_per_round:.2f} tokens per round"
        rf" \| mean weight on the target {stats.mean_target_weight:.2f}"
        rf" \| prompt {stats.prompt_tokens} tokens, [\d.]+ tok/s \| peak memory [\d.]+ GB"
    )


def test_the_answer_goes_to_stdout_and_the_figures_to_stderr(checkpoints, pair):
    outcome = generate(checkpoints, "-p", "hi", "-m", 20)
    prompt = chat_prompt(pair, [{"role": "user", "content": "hi"}])
    responses = list(stream_generate(pair, prompt, sampling=Sampling(temp=0.0), max_tokens=20))
    assert outcome.stdout_bytes.decode() == "".join(r.text for r in responses) + "\n"
    first, second = outcome.stderr.splitlines()
    assert first == LOSSLESS_NOTE
    assert re.fullmatch(figures(responses[-1].stats), second)


def test_json_prints_one_object_with_exactly_the_agreed_keys(checkpoints):
    found = answer(checkpoints, "-m", 20)
    assert list(found) == ["text", "tokens", "finish_reason", "stats"]
    assert set(found["stats"]) == STATS


def test_json_figures_belong_together(checkpoints):
    stats = answer(checkpoints, "-m", 20, "--verifier", "static")["stats"]
    assert stats["acceptance_rate"] == stats["accepted"] / stats["proposed"]
    assert stats["tokens_per_round"] == stats["generated_tokens"] / stats["rounds"]
    assert stats["mean_target_weight"] == pytest.approx(0.7)
    assert min(stats["prompt_tps"], stats["generation_tps"], stats["peak_memory_gb"]) > 0


def test_json_writes_null_where_there_is_no_figure(checkpoints):
    stats = answer(checkpoints, "-m", 20, "--verifier", "none")["stats"]
    assert (stats["acceptance_rate"], stats["mean_target_weight"]) == (None, None)
    assert (stats["proposed"], stats["tokens_per_round"]) == (0, 1)


def test_the_same_seed_gives_the_same_answer(checkpoints):
    once, twice = (answer(checkpoints, "-m", 20, "--temp", 1, "--seed", 5) for _ in range(2))
    assert without_stats(once) == without_stats(twice)


def test_the_other_names_of_flags_mean_the_same(checkpoints, pair):
    names = ("--draft-model", checkpoints["draft"], "--model", checkpoints["target"])
    found = json.loads(run("generate", *names, "--prompt", "hi", "--max-tokens", 9, "--json").stdout)
    assert without_stats(found) == library(pair, max_tokens=9)


# Equal to the library

VERIFIERS = {
    "--verifier lossless": Lossless(),
    "--verifier static": Static(),
    "--verifier static --target-weight 0.3": Static(target_weight=0.3),
    "--verifier lenient": Lenient(),
    "--lenience 0.1": Lenient(lenience=0.1),
    "--verifier cascade": Cascade(),
    "--alpha 0.9": Cascade(alpha=0.9),
    "--alpha 0.6 --rule token": Cascade(alpha=0.6, rule="token"),
    "--verifier none": None,
}


@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("flags", VERIFIERS)
def test_every_verifier_answers_as_the_library_does(checkpoints, pair, flags, temp):
    found = answer(checkpoints, "-m", 24, "--seed", 3, "--temp", temp, *flags.split())
    expected = library(pair, verifier=VERIFIERS[flags], max_tokens=24, seed=3, sampling=Sampling(temp=temp))
    assert without_stats(found) == expected


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_a_head_answers_as_the_library_does(checkpoints, pair, tmp_path, temp):
    head = save_head(tmp_path, 0.2)
    flags = ("--head", head, "--strictness", 0.5, "--temp", temp)
    verifier = Dynamic(load_head(head, pair), strictness=0.5)
    expected = library(pair, verifier=verifier, max_tokens=24, sampling=Sampling(temp=temp))
    assert without_stats(answer(checkpoints, "-m", 24, *flags)) == expected


def test_every_sampling_flag_reaches_the_library(checkpoints, pair):
    flags = "--temp 0.9 --top-p 0.8 --min-p 0.05 --top-k 20 --seed 11 --num-draft-tokens 3"
    sampling = Sampling(temp=0.9, top_p=0.8, min_p=0.05, top_k=20)
    expected = library(pair, sampling=sampling, seed=11, num_draft_tokens=3, max_tokens=30)
    assert without_stats(answer(checkpoints, "-m", 30, *flags.split())) == expected


def test_auto_draft_length_still_gives_the_targets_answer(checkpoints, pair):
    found = answer(checkpoints, "-m", 60, "--num-draft-tokens", "auto")
    assert found["tokens"] == library(pair, verifier=None, max_tokens=60)["tokens"]
    assert 0 < found["stats"]["proposed"] < 60, "some rounds draft and some are plain steps"


@pytest.mark.parametrize("bits", [4, 8])
def test_kv_bits_quantises_as_the_library_does(tmp_path, bits):
    wide = write_wide(tmp_path)
    pair = load_pair(target=str(wide["target"]), draft=str(wide["draft"]))
    expected = library(pair, max_tokens=40, kv_bits=bits)
    assert without_stats(answer(wide, "-m", 40, "--kv-bits", bits)) == expected


@pytest.mark.parametrize("pair_name", ["", "gemma-"])
def test_max_kv_size_limits_as_the_library_does(checkpoints, pair, gemma_pair, pair_name):
    models = {"draft": f"{pair_name}draft", "target": f"{pair_name}target"}
    expected = library(gemma_pair if pair_name else pair, max_tokens=60, max_kv_size=16)
    assert without_stats(answer(checkpoints, "-m", 60, "--max-kv-size", 16, **models)) == expected


def test_prefill_step_size_is_the_number_of_prompt_tokens_read_at_a_time(checkpoints, monkeypatch):
    passes = watch_passes(monkeypatch)
    small = generate(checkpoints, "-p", "x" * 47, "-m", 5, "--verifier", "none", "--prefill-step-size", 10)
    assert [n for n in passes if n > 1] == [10, 10, 10, 10, 9]
    passes.clear()
    large = generate(checkpoints, "-p", "x" * 47, "-m", 5, "--verifier", "none")
    assert [n for n in passes if n > 1] == [49]
    assert large.stdout == small.stdout


# How long an answer gets


def test_no_tokens_are_an_empty_answer(checkpoints):
    found = answer(checkpoints, "-m", 0)
    assert without_stats(found) == {"text": "", "tokens": [], "finish_reason": "length"}
    assert set(found["stats"]) == STATS
    assert found["stats"]["prompt_tokens"] == 5
    assert generate(checkpoints, "-p", "hi", "-m", 0).stdout == "\n"


def test_one_token_is_one_token(checkpoints, pair):
    found = answer(checkpoints, "-m", 1)
    assert without_stats(found) == library(pair, max_tokens=1)
    assert len(found["tokens"]) == 1


def test_no_limit_goes_to_the_end_of_the_context(checkpoints):
    found = answer(checkpoints, "-m", -1, "-p", "x" * 2000)
    assert found["finish_reason"] == "length"
    assert found["stats"]["prompt_tokens"] + len(found["tokens"]) == LLAMA["max_position_embeddings"]


def test_a_stop_token_ends_the_answer_and_is_no_text(checkpoints, tmp_path):
    found = answer(checkpoints, "-m", 200, "--head", save_head(tmp_path, -1e4))
    assert found["finish_reason"] == "stop"
    assert found["tokens"][-1] == LLAMA["eos_token_id"]
    assert "<|end|>" not in found["text"]


def test_stop_strings_end_the_answer_and_the_first_that_appears_wins(checkpoints):
    whole = answer(checkpoints, "-m", 40)["text"]
    late, early = whole[20:24], whole[12:15]
    found = answer(checkpoints, "-m", 40, "--stop", late, "--stop", early, "--stop", "not there")
    assert found["text"] == whole[: min(whole.index(late), whole.index(early))]
    assert found["finish_reason"] == "stop"
    assert len(found["tokens"]) < 40


# The prompt


def test_a_dash_reads_the_prompt_from_stdin(checkpoints, pair):
    found = answer(checkpoints, "-m", 9, "-p", "-", input="grüß\n😀")
    assert without_stats(found) == library(pair, "grüß\n😀", max_tokens=9)


def test_the_prompt_goes_through_the_chat_template_unless_told_otherwise(checkpoints, pair):
    assert without_stats(answer(checkpoints, "-m", 9)) == library(pair, "hi", max_tokens=9)
    plain = answer(checkpoints, "-m", 9, "--ignore-chat-template")
    assert without_stats(plain) == library(pair, pair.tokenizer.encode("hi"), max_tokens=9)


def test_without_a_chat_template_the_prompt_is_given_as_it_is(checkpoints, pair, tmp_path):
    shutil.copytree(checkpoints["target"], tmp_path / "plain")
    write_tokenizer(tmp_path / "plain", template=None)
    found = answer({**checkpoints, "plain": tmp_path / "plain"}, "-m", 9, target="plain")
    assert without_stats(found) == library(pair, pair.tokenizer.encode("hi"), max_tokens=9)


def test_a_system_prompt_comes_first(checkpoints, pair):
    found = answer(checkpoints, "-m", 9, "--system-prompt", "be kind")
    assert without_stats(found) == library(pair, "hi", "be kind", max_tokens=9)


def test_chat_template_config_sets_variables_of_the_template(checkpoints, pair, tmp_path):
    shutil.copytree(checkpoints["target"], tmp_path / "mood")
    write_tokenizer(tmp_path / "mood", template="{{ mood }}" + CHAT_TEMPLATE)
    found = answer(
        {**checkpoints, "mood": tmp_path / "mood"}, "-m", 9, "--chat-template-config", '{"mood": "glad"}', target="mood"
    )
    template = "glad<|user|>hi<|end|><|assistant|>"
    assert without_stats(found) == library(pair, pair.tokenizer.encode(template), max_tokens=9)


# Heads


def test_a_head_that_trusts_the_target_is_lossless(checkpoints, tmp_path):
    for temp in (0, 1):
        found = answer(checkpoints, "-m", 30, "--temp", temp, "--head", save_head(tmp_path, 1e4))
        assert found["tokens"] == answer(checkpoints, "-m", 30, "--temp", temp, "--verifier", "lossless")["tokens"]
        assert found["stats"]["mean_target_weight"] == 1


def test_a_head_that_trusts_the_draft_accepts_all(checkpoints, tmp_path):
    for temp in (0, 1):
        stats = answer(checkpoints, "-m", 30, "--temp", temp, "--head", save_head(tmp_path, -1e4))["stats"]
        assert (stats["acceptance_rate"], stats["mean_target_weight"]) == (1, 0)


def test_strictness_moves_a_head_from_lossless_to_all_accepted(checkpoints, tmp_path):
    head = save_head(tmp_path, 0)
    strict = answer(checkpoints, "-m", 30, "--head", head, "--strictness", "inf")
    assert strict["tokens"] == answer(checkpoints, "-m", 30, "--verifier", "lossless")["tokens"]
    loose = answer(checkpoints, "-m", 30, "--head", head, "--strictness=-inf")
    assert loose["stats"]["acceptance_rate"] == 1
    middle = answer(checkpoints, "-m", 30, "--head", head, "--strictness", -1)["stats"]
    assert middle["mean_target_weight"] == pytest.approx(1 / (1 + math.e))


@pytest.mark.parametrize("flags", [(), ("--verifier", "dynamic"), ("--strictness", "0")])
def test_the_head_trained_for_this_pair_is_found_used_and_named(checkpoints, tmp_path, flags):
    names = str(checkpoints["draft"]), str(checkpoints["target"])
    head = save_head(tmp_path / "heads" / "gsm8k", -1e4, names)
    outcome = generate(checkpoints, "-p", "hi", "-m", 30, "--json", *flags, home=tmp_path)
    dial = "strictness 0: as trained\nwhat it costs was not measured for this head\n" if "--strictness" in flags else ""
    assert outcome.stderr == f"verifying with the head {head}\n{dial}"
    assert json.loads(outcome.stdout)["stats"]["mean_target_weight"] == 0


def test_a_head_of_this_machine_is_named_by_its_task(checkpoints, tmp_path):
    save_head(tmp_path / "heads" / "gsm8k", -1e4)
    assert answer(checkpoints, "-m", 9, "--head", "gsm8k", home=tmp_path)["stats"]["mean_target_weight"] == 0


def test_a_head_for_another_pair_is_not_used_unasked(checkpoints, tmp_path):
    save_head(tmp_path / "heads" / "gsm8k", -1e4, (str(checkpoints["adversary"]), str(checkpoints["target"])))
    outcome = generate(checkpoints, "-p", "hi", "-m", 9, "--json", home=tmp_path)
    assert outcome.stderr == LOSSLESS_NOTE + "\n"
    assert json.loads(outcome.stdout)["stats"]["mean_target_weight"] == 1


def test_a_head_for_folders_of_the_same_relative_names_elsewhere_is_not_used(checkpoints, tmp_path, monkeypatch):
    save_head(tmp_path / "heads" / "gsm8k", -1e4, ("draft", "target"))  # as trained in another working folder
    for name in ("draft", "target"):
        (tmp_path / name).symlink_to(checkpoints[name])
    monkeypatch.chdir(tmp_path)
    outcome = generate({"draft": "draft", "target": "target"}, "-p", "hi", "-m", 9, home=tmp_path)
    assert outcome.stderr.startswith(LOSSLESS_NOTE)


def test_a_head_is_found_however_its_folders_are_written(checkpoints, tmp_path):
    save_head(tmp_path / "heads" / "gsm8k", -1e4, (str(checkpoints["draft"]), str(checkpoints["target"])))
    slashed = {name: f"{folder}/" for name, folder in checkpoints.items()}
    assert "verifying with the head" in generate(slashed, "-p", "hi", "-m", 9, home=tmp_path).stderr


def test_another_verifier_does_not_look_for_a_head(checkpoints, tmp_path):
    save_head(tmp_path / "heads" / "gsm8k", -1e4, (str(checkpoints["draft"]), str(checkpoints["target"])))
    outcome = generate(checkpoints, "-p", "hi", "-m", 9, "--json", "--verifier", "lossless", home=tmp_path)
    assert outcome.stderr == ""
    assert json.loads(outcome.stdout)["stats"]["mean_target_weight"] == 1


# Models


def test_verifier_none_loads_no_draft(checkpoints, pair):
    found = answer({**checkpoints, "draft": "/no/such/folder"}, "-m", 9, "--verifier", "none")
    assert without_stats(found) == library(pair, verifier=None, max_tokens=9)


def test_a_target_alone_says_that_it_decodes_alone(checkpoints, pair):
    outcome = run("generate", "--target", checkpoints["target"], "-p", "hi", "-m", 9, "--json")
    assert outcome.stderr == "no --draft: the target decodes alone\n"
    assert without_stats(json.loads(outcome.stdout)) == library(pair, verifier=None, max_tokens=9)


def test_a_model_that_drafts_for_itself_accepts_all(checkpoints):
    assert answer(checkpoints, "-m", 30, draft="target")["stats"]["acceptance_rate"] == 1


def test_a_local_folder_wins_over_an_alias_of_its_name(checkpoints, pair, tmp_path, monkeypatch):
    for alias, name in (("8b", "target"), ("1b", "draft")):
        (tmp_path / alias).symlink_to(checkpoints[name])
    monkeypatch.chdir(tmp_path)
    found = json.loads(run("generate", "-p", "hi", "-m", 9, "--json").stdout)
    assert without_stats(found) == library(pair, max_tokens=9)


def test_a_model_in_the_local_hub_cache_loads_without_network(checkpoints, pair, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    commit = "0" * 40
    for name in ("target", "draft"):
        folder = tmp_path / f"models--tiny--{name}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
        shutil.copytree(checkpoints[name], folder / "snapshots" / commit)
    found = answer({"target": "tiny/target", "draft": "tiny/draft"}, "-m", 9)
    assert without_stats(found) == library(pair, max_tokens=9)


# Where tokens come from


def marked(responses) -> str:
    """The text of responses with the marks of `--show-tokens`."""
    marks = {"corrected": "[{}]", "bonus": "({})"}

    def mark(piece: str, origin: str) -> str:
        return marks.get(origin, "{}").format(piece) if piece else ""

    return "".join("\n".join(mark(piece, r.origin) for piece in r.text.split("\n")) for r in responses)


def test_show_tokens_marks_corrections_and_bonuses(checkpoints, pair):
    outcome = generate(checkpoints, "-p", "hi", "-m", 40, "--show-tokens")
    prompt = chat_prompt(pair, [{"role": "user", "content": "hi"}])
    expected = marked(stream_generate(pair, prompt, sampling=Sampling(temp=0.0), max_tokens=40))
    assert outcome.stdout_bytes.decode() == expected + "\n"
    assert {"[", "("} < set(expected)
    assert "tokens: accepted, [corrected], (bonus)" in outcome.stderr


def test_show_tokens_colours_tokens_on_a_terminal(checkpoints, monkeypatch):
    monkeypatch.setattr("diversed_mlx.cli.printer.use_colour", lambda: True)
    text = generate(checkpoints, "-p", "hi", "-m", 40, "--show-tokens").stdout_bytes.decode()
    plain = generate(checkpoints, "-p", "hi", "-m", 40).stdout_bytes.decode()
    assert set(re.findall(r"\x1b\[(3\d)m", text)) == {"32", "31", "36"}, "green, red and cyan"
    assert re.sub(r"\x1b\[\d+m", "", text) == plain


# Interrupted


def test_an_interrupt_exits_with_130_and_no_traceback(checkpoints, monkeypatch):
    def interrupted(self, response):
        raise KeyboardInterrupt

    monkeypatch.setattr(PlainScreen, "add", interrupted)
    assert generate(checkpoints, "-p", "hi", code=130).stderr == LOSSLESS_NOTE + "\n"
