"""What a person can get wrong: each case is one clear line, exit 1 for what they can fix and 2 for bad usage."""

import json
import shutil
from pathlib import Path

import pytest
from test_cli_generate import LOSSLESS_NOTE, run, save_head
from tiny import END, LLAMA, VOCAB, write_model

MAMBA = {
    "model_type": "mamba",
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "state_size": 8,
    "num_hidden_layers": 1,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "time_step_rank": 4,
    "eos_token_id": END,
}


def refused(*args: object, code: int = 1, **settings) -> str:
    """Run a command that must fail; return its one line of error, without the word."""
    outcome = run(*args, code=code, **settings)
    assert outcome.stdout == ""
    lines = [line for line in outcome.stderr.splitlines() if line != LOSSLESS_NOTE]
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def with_models(draft: object, target: object, *args: object, **settings) -> str:
    return refused("generate", "--draft", draft, "--target", target, "-p", "hi", "-m", 5, *args, **settings)


# Values out of range: found before any model is looked for


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(
    ("flag", "values"),
    [
        ("--temp", ["-1", "nan", "inf", "-inf", "x"]),
        ("--target-weight", ["1.5", "-0.1", "nan", "inf"]),
        ("--lenience", ["0", "-1", "1.1", "nan"]),
        ("--alpha", ["-0.1", "1.1", "nan"]),
        ("--strictness", ["nan", "x"]),
        ("--rule", ["sum"]),
        ("--top-p", ["0", "-1", "1.1", "nan"]),
        ("--min-p", ["-0.1", "1.1", "nan"]),
        ("--top-k", ["-1", "1.5", "x"]),
        ("--max-tokens", ["-2", "1.5", "x"]),
        ("--seed", ["-1", str(2**64), "x"]),
        ("--num-draft-tokens", ["0", "65", "-1", "x", "1.5", "Auto", ""]),
        ("--max-kv-size", ["15", "0", "-1", "x"]),
        ("--kv-bits", ["1", "7", "16", "x"]),
        ("--prefill-step-size", ["0", "-1", "x"]),
        ("--verifier", ["fast", "", "Lossless"]),
        ("--chat-template-config", ["{", "3", "[]", "null", ""]),
        ("--stop", [""]),
        ("--draft", ["", " "]),
        ("--target", [""]),
        ("--head", [""]),
    ],
)
def test_a_value_out_of_range_is_bad_usage_and_names_the_flag(command, flag, values):
    prompt = ["-p", "hi"] if command == "generate" else []
    for value in values:
        outcome = run(command, "--target", "/no/such/folder", *prompt, f"{flag}={value}", code=2)
        assert outcome.stdout == ""
        (line,) = [line for line in outcome.stderr.splitlines() if "Invalid value" in line]
        assert flag in line


def test_unknown_words_are_bad_usage():
    for args, said in (
        (["generate"], "Missing option '--prompt' / '-p'"),
        (["generate", "-p", "hi", "extra"], "unexpected extra argument(s) (extra)"),
        (["generate", "-p", "hi", "--tmp", "1"], "No such option: --tmp"),
        (["chat", "-p", "hi"], "No such option: -p"),
        (["chat", "--json"], "No such option: --json"),
        (["chart"], "No such command 'chart'"),
    ):
        assert said in run(*args, code=2).stderr


# Prompts


@pytest.mark.parametrize("prompt", [{"args": ["-p", ""]}, {"args": ["-p", "-"], "input": ""}])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(prompt):
    args = ("generate", "--target", "/no/such/folder", *prompt["args"])
    assert refused(*args, input=prompt.get("input")) == "the prompt is empty"


@pytest.mark.parametrize("verifier", ["lossless", "none"])
def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths(checkpoints, verifier):
    args = ("-p", "x" * 3000, "--verifier", verifier)
    said = with_models(checkpoints["draft"], checkpoints["target"], *args)
    assert said == "the prompt has 3003 tokens and the context of this pair holds 2048: shorten it"


def test_stdin_that_is_not_utf_8_is_refused():
    args = ("generate", "--target", "/no/such/folder", "-p", "-")
    assert refused(*args, input=b"caf\xe9").startswith("stdin is not valid UTF-8: ")


@pytest.mark.parametrize(
    "args",
    [
        ["-p", "caf\udce9"],
        ["--system-prompt", "caf\udce9"],
        ["--ignore-chat-template", "-p", "\udce9"],
        ["--stop", "\udce9"],
    ],
)
def test_text_that_is_not_utf_8_is_refused(checkpoints, args):
    said = with_models(checkpoints["draft"], checkpoints["target"], *args)
    assert said == "the text is not valid UTF-8: convert it first"


# Models that are not there


@pytest.mark.parametrize("name", ["nosuch", "./nosuch", "~/no/such", "/no/such", "a/b/c"])
@pytest.mark.parametrize("role", ["draft", "target"])
def test_a_folder_that_is_not_there_is_named_beside_what_would_do(checkpoints, role, name):
    models = {"draft": checkpoints["draft"], "target": checkpoints["target"], role: name}
    said = with_models(**models)
    assert said.startswith(f"{name}: no such folder, and not the name of a model; ")
    assert "1b, 3b, 8b, qwen3-0.6b, qwen3-8b, gemma3-4b, gemma3-12b" in said


def test_a_hub_id_that_cannot_be_one_is_refused(checkpoints):
    said = with_models(checkpoints["draft"], "my model/x")
    assert said == "my model/x: no such folder, and not a valid Hub id"


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("flags", [["--target", "no/such"], []])
def test_a_missing_model_without_network_says_so(tmp_path, monkeypatch, command, flags):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    prompt = ["-p", "hi"] if command == "generate" else []
    said = refused(command, *flags, "--verifier", "none", *prompt)
    name = "no/such" if flags else "mlx-community/Meta-Llama-3.1-8B-Instruct-4bit"
    assert said.startswith(f"{name} is not in the local Hub cache and the Hub cannot be reached: check the network")


# Folders that hold no whole model


def copied(checkpoints, folder: Path, name: str = "target") -> Path:
    return Path(shutil.copytree(checkpoints[name], folder))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "is no model: it holds no config.json"),
    "config is no JSON": (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
    "config says nothing": (lambda folder: (folder / "config.json").write_text("{}"), "'model_type' is missing"),
    "unknown architecture": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "nonesuch"}'),
        "Model type nonesuch not supported",
    ),
    "other sizes": (
        lambda folder: (folder / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": 64})),
        "but received shape",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "No safetensors found"),
    "empty weights": (lambda folder: cut(folder / "model.safetensors", 0), "incomplete or damaged"),
    "cut in the header": (lambda folder: cut(folder / "model.safetensors", 100), "incomplete download or corrupt file"),
    "cut in the tensors": (lambda folder: cut(folder / "model.safetensors", -100), "incomplete download or corrupt"),
    "weights are text": (lambda folder: (folder / "model.safetensors").write_text("hello " * 20), "model.safetensors"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
}


@pytest.mark.parametrize("role", ["draft", "target"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_refused_by_name(checkpoints, tmp_path, damage, role):
    harm, said = DAMAGES[damage]
    folder = copied(checkpoints, tmp_path / "broken", role)
    harm(folder)
    line = with_models(**{"draft": checkpoints["draft"], "target": checkpoints["target"], role: folder})
    assert str(folder) in line
    assert said in line


def test_a_file_is_no_model(checkpoints):
    path = checkpoints["target"] / "config.json"
    assert with_models(checkpoints["draft"], path) == f"{path} is a file; give the folder of a model or a Hub id"


def test_code_that_comes_with_a_model_is_not_run_unasked(checkpoints, tmp_path):
    folder = copied(checkpoints, tmp_path / "code")
    (folder / "config.json").write_text(json.dumps(LLAMA | {"model_file": "model.py"}))
    (folder / "model.py").write_text("raise SystemExit('ran')")
    assert str(folder) in with_models(checkpoints["draft"], folder)


def test_models_too_large_for_this_machine_are_refused_with_their_size(checkpoints, monkeypatch):
    monkeypatch.setattr("diversed_mlx.memory.available_bytes", lambda: 200_000)
    said = with_models(checkpoints["draft"], checkpoints["target"])
    assert "take 0.0 GB and this machine has 0.0 GB for models; use smaller models" in said
    assert f"{checkpoints['target']} and {checkpoints['draft']}" in said


def test_models_too_large_for_this_machine_name_a_pair_that_fits(checkpoints, monkeypatch):
    monkeypatch.setattr("diversed_mlx.memory.available_bytes", lambda: 6 * 10**9)
    monkeypatch.setattr("diversed_mlx.memory.weight_bytes", lambda source: 5 * 10**9)
    said = with_models(checkpoints["draft"], checkpoints["target"])
    assert said.endswith("take 10.0 GB and this machine has 6.0 GB for models; --draft 1b --target 8b fits")


# Models that are no pair


def test_two_vocabularies_are_refused_with_the_first_token_that_differs(checkpoints, tmp_path):
    other = write_model(tmp_path / "other", swap=(65, 66))
    said = with_models(other, checkpoints["target"])
    assert said == (
        f"{other} and {checkpoints['target']} do not share a vocabulary: "
        "token 65 is 'c' in the draft and 'b' in the target"
    )


@pytest.mark.parametrize("role", ["draft", "target"])
def test_a_recurrent_model_is_refused_with_what_to_do_instead(checkpoints, tmp_path, role):
    mamba = write_model(tmp_path / "mamba", MAMBA)
    said = with_models(**{"draft": checkpoints["draft"], "target": checkpoints["target"], role: mamba})
    assert said.startswith(f"the {role} {mamba} cannot take part in speculative decoding: its ArraysCache layers")
    assert said.endswith("or decode with the target alone (--verifier none)")


def test_a_recurrent_target_decodes_alone_as_the_refusal_says(tmp_path):
    outcome = run(
        "generate", "--target", write_model(tmp_path / "mamba", MAMBA), "-p", "hi", "-m", 5, "--verifier", "none"
    )
    assert outcome.stderr.startswith("5 tokens | ")


def test_a_cache_that_cannot_be_quantised_is_refused(checkpoints):
    said = with_models(checkpoints["draft"], checkpoints["target"], "--kv-bits", 4)
    assert "cannot quantise its cache (heads must be a multiple of 64 wide)" in said


# Heads


def with_head(checkpoints, head: object, **settings) -> str:
    return with_models(checkpoints["draft"], checkpoints["target"], "--head", head, **settings)


def test_a_head_for_other_models_is_refused_with_all_four_widths(checkpoints, tmp_path):
    head = save_head(tmp_path, 0, size=16)
    assert with_head(checkpoints, head) == (
        f"the head {head} is for a draft of width 16 and a target of width 32, and this pair has 32 and 32: "
        "use a head that was trained for it"
    )


def test_a_head_with_a_weight_that_is_no_number_is_refused(checkpoints, tmp_path):
    head = save_head(tmp_path, float("nan"))
    assert with_head(checkpoints, head).endswith("summary.bias holds NaN or infinity: train the head again")


@pytest.mark.parametrize("name", ["head.safetensors", "head.json"])
def test_half_a_head_is_refused_with_the_file_that_is_missing(checkpoints, tmp_path, name):
    head = save_head(tmp_path, 0)
    (tmp_path / name).unlink()
    assert with_head(checkpoints, head) == f"{head} holds no head: {name} is missing"


@pytest.mark.parametrize("name", ["head.safetensors", "head.json"])
def test_a_damaged_head_is_refused_with_the_file_that_is_damaged(checkpoints, tmp_path, name):
    head = save_head(tmp_path, 0)
    cut(tmp_path / name, -20)
    assert with_head(checkpoints, head).startswith(f"{tmp_path / name} ")


def test_a_damaged_head_that_was_found_is_refused_too(checkpoints, tmp_path):
    folder = tmp_path / "heads" / "gsm8k"
    save_head(folder, 0, (str(checkpoints["draft"]), str(checkpoints["target"])))
    cut(folder / "head.safetensors", 10)
    outcome = run(
        *("generate", "--draft", checkpoints["draft"], "--target", checkpoints["target"], "-p", "hi"),
        home=tmp_path,
        code=1,
    )
    named, error = outcome.stderr.splitlines()
    assert named == f"verifying with the head {folder}"
    assert error.startswith(f"error: {folder / 'head.safetensors'} cannot be read")


@pytest.mark.parametrize("name", ["gsm8k", "/no/such/head", "./head", "a/b/c"])
def test_a_head_that_is_not_there_is_refused_with_where_it_was_sought(checkpoints, tmp_path, name):
    said = with_head(checkpoints, name, home=tmp_path)
    assert said == f"no head {name}: neither a folder, nor a head in {tmp_path / 'heads'}, nor a Hub id"


def test_a_head_of_the_hub_without_network_is_one_clear_line(checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    said = with_head(checkpoints, "no/such")
    assert said.startswith("the head no/such is not on this machine and the Hub does not give it: ")


def test_a_head_file_is_no_head(checkpoints, tmp_path):
    path = Path(save_head(tmp_path, 0)) / "head.json"
    assert with_head(checkpoints, path).startswith(f"{path} is a file; give the folder")


def test_dynamic_without_a_head_says_to_name_one(checkpoints):
    said = with_models(checkpoints["draft"], checkpoints["target"], "--verifier", "dynamic")
    assert said == "no head was trained for this pair on this machine: name one with --head"


@pytest.mark.parametrize("name", ["messages", "tokenize", "return_tensors", "add_generation_prompt", "chat_template"])
def test_a_template_variable_that_means_something_to_the_tokenizer_is_refused(checkpoints, name):
    said = with_models(checkpoints["draft"], checkpoints["target"], "--chat-template-config", json.dumps({name: "x"}))
    assert said == f"{name} cannot be set as a variable of the chat template"
