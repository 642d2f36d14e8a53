"""Every flag of `generate` and `chat` has an effect, or is refused with a reason: none is parsed and dropped."""

import json
import re
import shlex
import shutil
from typing import Any

import pytest
from test_cli_generate import run, save_head, watch_passes, write_wide
from tiny import CHAT_TEMPLATE, LLAMA, write_tokenizer
from typer.main import get_command

from diversed_mlx.cli.main import app

GROUP: Any = get_command(app)
COMMANDS = {name: GROUP.commands[name] for name in ("generate", "chat")}

# Flag -> arguments without it and with it. Names in braces are checkpoints and heads; a flag given again counts last.
EFFECTS = {
    "--draft": ("", "--draft {adversary}"),
    "--target": ("", "--target {adversary}"),
    "--trust-remote-code": ("--target {code}", "--target {code} --trust-remote-code"),
    "--verifier": ("--verifier lossless", "--verifier none"),
    "--target-weight": ("--verifier static", "--verifier static --target-weight 0.1"),
    "--head": ("", "--head {head}"),
    "--strictness": ("--head {head}", "--head {head} --strictness -9"),
    "--lenience": ("--verifier lenient", "--verifier lenient --lenience 0.01"),
    "--alpha": ("--verifier cascade", "--verifier cascade --alpha 1"),
    "--rule": ("--alpha 0.8", "--alpha 0.8 --rule token"),
    "--num-draft-tokens": ("", "--num-draft-tokens 2"),
    "--temp": ("", "--temp 5"),
    "--top-p": ("--temp 5", "--temp 5 --top-p 0.2"),
    "--min-p": ("--temp 5", "--temp 5 --min-p 0.2"),
    "--top-k": ("--temp 5", "--temp 5 --top-k 2"),
    "--max-tokens": ("", "--max-tokens 7"),
    "--seed": ("--temp 1", "--temp 1 --seed 1"),
    "--stop": ("", "--stop {stop}"),
    "--system-prompt": ("", "--system-prompt 'be kind'"),
    "--chat-template-config": ("--target {mood}", """--target {mood} --chat-template-config '{{"mood": "glad"}}'"""),
    "--max-kv-size": ("", "--max-kv-size 16"),
    "--kv-bits": (
        "--target {wide-target} --draft {wide-draft}",
        "--target {wide-target} --draft {wide-draft} --kv-bits 4",
    ),
    "--prefill-step-size": ("", "--prefill-step-size 10"),
    "--show-tokens": ("", "--show-tokens"),
}
EFFECTS_OF = {
    "chat": EFFECTS,
    "generate": EFFECTS
    | {
        "--prompt": ("", "--prompt ho"),
        "--ignore-chat-template": ("", "--ignore-chat-template"),
        "--json": ("", "--json"),
    },
}


@pytest.fixture(scope="module")
def places(checkpoints, tmp_path_factory):
    """What the names in braces stand for."""
    root = tmp_path_factory.mktemp("places")
    for name in ("mood", "code"):
        shutil.copytree(checkpoints["target"], root / name)
    write_tokenizer(root / "mood", template="{{ mood }}" + CHAT_TEMPLATE)
    (root / "code" / "config.json").write_text(json.dumps(LLAMA | {"model_file": "model.py"}))
    (root / "code" / "model.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    wide = write_wide(root / "wide")
    named = {name: root / name for name in ("mood", "code")} | {
        "head": save_head(root / "head", 0),
        "wide-target": wide["target"],
        "wide-draft": wide["draft"],
    }
    places = {name: shlex.quote(str(place)) for name, place in (checkpoints | named).items()}
    answer = invoke("generate", places).stdout
    return places | {"stop": shlex.quote(answer[3:5])}


def invoke(command: str, places: dict[str, str], flags: str = "", code: int | None = 0):
    """Run a command on the tiny pair, `generate` with a prompt and `chat` with two turns."""
    prompt = "-p 'hello you'" if command == "generate" else ""
    line = f"{command} --draft {{draft}} --target {{target}} -m 20 {prompt} {flags}"
    return run(*shlex.split(line.format(**places)), input="hello you\nhow are you?\n", code=code)


def flags_of(command: str) -> set[str]:
    return {parameter.opts[0] for parameter in COMMANDS[command].params}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_table_of_effects_holds_every_flag(command):
    on_terminals = {"chat": {"--markdown"}, "generate": set()}  # tests/test_cli_terminal.py
    assert flags_of(command) == set(EFFECTS_OF[command]) | on_terminals[command]


def observe(command: str, places: dict[str, str], flags: str, monkeypatch) -> tuple:
    """What a command did: exit status, stdout, figures without times, and the lengths of all forward passes."""
    passes = watch_passes(monkeypatch)
    outcome = invoke(command, places, flags, code=None)
    monkeypatch.undo()
    figures = re.sub(r"[\d.]+ (tok/s|GB)", "", outcome.stderr.splitlines()[-1])
    return outcome.exit_code, outcome.stdout_bytes, figures, passes


@pytest.fixture(scope="module")
def seen() -> dict[tuple[str, str], tuple]:
    """What was observed without a flag; many flags share it."""
    return {}


@pytest.mark.parametrize(("command", "flag"), [(command, flag) for command in COMMANDS for flag in EFFECTS_OF[command]])
def test_every_flag_has_an_effect(command, flag, places, seen, monkeypatch):
    without, with_it = EFFECTS_OF[command][flag]
    if (command, without) not in seen:
        seen[command, without] = observe(command, places, without, monkeypatch)
    after = observe(command, places, with_it, monkeypatch)
    assert after != seen[command, without]
    assert after[0] == 0
    assert seen[command, without][0] == (1 if flag == "--trust-remote-code" else 0)


def test_an_effect_is_no_chance(places, monkeypatch):
    once, twice = (observe("chat", places, "--temp 5", monkeypatch) for _ in range(2))
    assert once == twice


@pytest.mark.parametrize("command", COMMANDS)
def test_both_names_of_a_flag_are_known_to_both_commands(command):
    names = {tuple(parameter.opts) for parameter in COMMANDS[command].params if len(parameter.opts) > 1}
    expected = {("--draft", "--draft-model"), ("--target", "--model"), ("--max-tokens", "-m")}
    assert names == expected | ({("--prompt", "-p")} if command == "generate" else set())


# Refused: flags of another verifier, and flags that exclude each other.

OWNERS = {
    "--target-weight": ("static", "0.5"),
    "--head": ("dynamic", "somewhere"),
    "--strictness": ("dynamic", "0"),
    "--lenience": ("lenient", "0.5"),
    "--alpha": ("cascade", "0.5"),
    "--rule": ("cascade", "opt"),
}
VERIFIERS = ("lossless", "static", "dynamic", "lenient", "cascade", "none")
NO_MODELS = ("--draft", "/no/such/draft", "--target", "/no/such/target")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", OWNERS)
def test_a_flag_of_another_verifier_is_refused_before_anything_is_loaded(command, flag):
    owner, value = OWNERS[flag]
    prompt = ["-p", "hi"] if command == "generate" else []
    for verifier in set(VERIFIERS) - {owner}:
        outcome = run(command, *NO_MODELS, *prompt, "--verifier", verifier, flag, value, code=2)
        assert f"{flag} belongs to --verifier {owner}, not to {verifier}" in outcome.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_two_verifiers_are_refused(command):
    prompt = ["-p", "hi"] if command == "generate" else []
    outcome = run(command, *NO_MODELS, *prompt, "--lenience", 0.5, "--alpha", 0.5, code=2)
    assert "--alpha belongs to --verifier cascade, not to lenient" in outcome.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--show-tokens --json", "--show-tokens and --json exclude each other"),
        ("--max-kv-size 16 --kv-bits 4", "--max-kv-size and --kv-bits exclude each other"),
        ("--ignore-chat-template --system-prompt x", "--ignore-chat-template leaves no place for --system-prompt"),
        (
            "--ignore-chat-template --chat-template-config '{\"a\": 1}'",
            "leaves no place for --system-prompt or --chat-t",
        ),
    ],
)
def test_flags_that_exclude_each_other_are_refused(flags, reason):
    assert reason in run("generate", *NO_MODELS, "-p", "hi", *shlex.split(flags), code=2).stderr


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("alone", [("--target", "/no/such/target"), (*NO_MODELS, "--verifier", "none")])
@pytest.mark.parametrize("flag", ["--num-draft-tokens 4", "--show-tokens"])
def test_what_means_nothing_without_a_draft_is_refused_before_anything_is_loaded(command, alone, flag):
    prompt = ["-p", "hi"] if command == "generate" else []
    outcome = run(command, *alone, *prompt, *flag.split(), code=2)
    assert f"{flag.split()[0]} needs a draft" in outcome.stderr


@pytest.mark.parametrize("verifier", ["lossless", "static", "dynamic", "lenient", "cascade"])
def test_a_verifier_without_a_draft_is_refused(verifier, places):
    outcome = run("generate", "--target", "/no/such/target", "-p", "hi", "--verifier", verifier, code=1)
    assert f"--verifier {verifier} needs a draft" in outcome.stderr


@pytest.mark.parametrize("flag", ["--system-prompt x", "--chat-template-config '{{\"a\": 1}}'"])
def test_what_only_a_chat_template_takes_is_refused_without_one(flag, places, tmp_path):
    shutil.copytree(shlex.split(places["target"])[0], tmp_path / "plain")
    write_tokenizer(tmp_path / "plain", template=None)
    outcome = invoke("generate", places, f"--target {shlex.quote(str(tmp_path / 'plain'))} {flag}", code=1)
    assert "plain has no chat template" in outcome.stderr
