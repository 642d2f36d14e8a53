"""What makes a pair: one vocabulary, caches that rewind, checkpoints that are whole, and where they are found."""

import json
import os
import shutil
import socket
import subprocess
import sys
import types
from pathlib import Path

import huggingface_hub.constants
import mlx.core as mx
import pytest
from mlx_lm.models import llama
from tiny import END, GEMMA, LLAMA, MAMBA, SPECIALS, VOCAB, random_weights, write_model

import diversed_mlx.memory
from diversed_mlx import DiversedError, Sampling, Static, generate, load_pair, stream_generate
from diversed_mlx.hub import ALIASES, EMBEDDED, locate, resolve
from diversed_mlx.lm import LM


def one_line(error: pytest.ExceptionInfo[DiversedError]) -> str:
    """The message of an error, which must be one line."""
    text = str(error.value)
    assert text
    assert "\n" not in text
    return text


def change_json(file: Path, change) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def add_token(folder: Path, token: int, text: str) -> None:
    """Let a tokenizer name one more id, which may lie behind a gap."""
    entry = {
        "id": token,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }

    def change(content: dict) -> None:
        content["added_tokens"].append(entry)
        # Those outside of the vocabulary would get the next free ids, whatever theirs are.
        content["model"]["vocab"].update({entry["content"]: entry["id"] for entry in content["added_tokens"]})

    change_json(folder / "tokenizer.json", change)


def rename_token(folder: Path, old: str, new: str) -> None:
    """Give an added token another text."""

    def change(content: dict) -> None:
        (entry,) = [entry for entry in content["added_tokens"] if entry["content"] == old]
        entry["content"] = new

    change_json(folder / "tokenizer.json", change)


# Vocabularies -------------------------------------------------------------------------------------------------------


def test_two_vocabularies_that_differ_are_refused_with_the_first_id_and_both_texts(checkpoints, tmp_path):
    draft = write_model(tmp_path / "draft", swap=(70, 65))
    target_tokenizer = load_pair(target=str(checkpoints["target"])).tokenizer
    texts = {token: text for text, token in target_tokenizer.get_vocab().items()}
    with pytest.raises(DiversedError) as error:
        load_pair(target=str(checkpoints["target"]), draft=str(draft))
    message = one_line(error)
    assert f"token 65 is {texts[70]!r} in the draft and {texts[65]!r} in the target" in message
    assert str(draft) in message
    assert str(checkpoints["target"]) in message


def test_an_ordinary_token_that_the_draft_does_not_have_is_refused(checkpoints, tmp_path):
    draft = write_model(tmp_path / "draft", LLAMA | {"vocab_size": 200})
    with pytest.raises(DiversedError, match=r"token 200 is .* in the target and unknown to the draft") as error:
        load_pair(target=str(checkpoints["target"]), draft=str(draft))
    one_line(error)


def test_logits_of_different_widths_are_one_vocabulary_and_the_padding_is_never_emitted(padded_pair):
    assert padded_pair.draft.logits_size == VOCAB + 12
    assert padded_pair.target.logits_size == padded_pair.vocab_size == VOCAB
    plain = generate(padded_pair, "Hello", verifier=None, sampling=Sampling(temp=0), max_tokens=30)
    assert generate(padded_pair, "Hello", sampling=Sampling(temp=0), max_tokens=30) == plain
    for verifier in (Static(target_weight=0.0), Static(target_weight=1.0)):
        responses = list(stream_generate(padded_pair, "Hello", verifier=verifier, max_tokens=60))
        assert max(r.token for r in responses) < VOCAB
        assert any(r.from_draft for r in responses)


def test_a_padded_target_alone_never_emits_its_padding(tmp_path):
    weights = random_weights(LLAMA | {"vocab_size": VOCAB + 12}, 1, 4.0)
    weights["lm_head.weight"][VOCAB:] *= 50  # which would win every draw, where it is positive
    target = write_model(tmp_path / "target", LLAMA | {"vocab_size": VOCAB + 12}, weights=weights)
    pair = load_pair(target=str(target))
    assert (pair.target.logits_size, pair.vocab_size) == (VOCAB + 12, VOCAB)
    assert max(r.token for r in stream_generate(pair, "Hello", verifier=None, max_tokens=40)) < VOCAB


def test_added_tokens_that_only_one_model_names_are_not_used(tmp_path):
    config = LLAMA | {"vocab_size": VOCAB + 12}
    weights = random_weights(config, 1, 4.0)
    target = write_model(tmp_path / "target", config, weights=weights)
    draft = write_model(tmp_path / "draft", config, weights=weights, noise=0.15)
    for folder, token in ((target, VOCAB), (draft, VOCAB + 1), (target, VOCAB + 3), (draft, VOCAB + 3)):
        add_token(folder, token, f"<|tool {token}|>")
    pair = load_pair(target=str(target), draft=str(draft))
    shared = {*range(VOCAB), VOCAB + 3}
    assert pair.vocab_size == VOCAB + 4
    logits = pair.shared_logits(mx.zeros((2, VOCAB + 12)))
    assert logits.shape == (2, VOCAB + 4)
    assert {i for i in range(VOCAB + 4) if logits[1, i].item() == 0} == shared
    for verifier in (None, Static(target_weight=0.0), Static(target_weight=1.0)):
        assert {r.token for r in stream_generate(pair, "Hello", verifier=verifier, max_tokens=60)} <= shared


def test_an_added_token_with_another_text_is_refused(checkpoints, tmp_path):
    draft = write_model(tmp_path / "draft")
    rename_token(draft, "<|user|>", "<|person|>")
    with pytest.raises(DiversedError, match=r"token 258 is '<\|person\|>' in the draft and '<\|user\|>' in the target"):
        load_pair(target=str(checkpoints["target"]), draft=str(draft))


def test_a_stop_token_that_the_draft_does_not_know_is_refused(checkpoints, tmp_path):
    draft = write_model(tmp_path / "draft", LLAMA | {"vocab_size": 256})
    with pytest.raises(DiversedError) as error:
        load_pair(target=str(checkpoints["target"]), draft=str(draft))
    assert f"does not know the stop token {END} ({SPECIALS[0]!r})" in one_line(error)


def test_stop_tokens_are_the_tokenizers_and_those_of_generation_config(tmp_path):
    target = write_model(tmp_path / "target", LLAMA | {"eos_token_id": 257})
    assert load_pair(target=str(target)).stop_tokens == {END, 257}
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 259]}))
    assert load_pair(target=str(target)).stop_tokens == {END, 258, 259}
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": 258}))
    assert load_pair(target=str(target)).stop_tokens == {END, 258}
    # An id that no tokenizer names can never come, so it cannot stop anything.
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 5000]}))
    assert load_pair(target=str(target)).stop_tokens == {END, 258}


def test_every_stop_token_stops(tmp_path):
    target = write_model(tmp_path / "target")
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 259]}))
    pair = load_pair(target=str(target), draft=str(target))
    for stop in (END, 258, 259):

        def force(history: mx.array, logits: mx.array, stop: int = stop) -> mx.array:
            token = 40 if history.shape[0] < 8 else stop
            return mx.where(mx.arange(logits.shape[-1])[None] == token, 0.0, -mx.inf)

        responses = list(stream_generate(pair, "Hello", logits_processors=[force]))
        assert [r.token for r in responses] == [40, 40, 40, stop]
        assert responses[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("target_length", "draft_length", "expected"), [(100, 60, 60), (60, 100, 60), (60, None, 60), (None, 80, 80)]
)
def test_the_context_is_the_shorter_of_the_two(tmp_path, target_length, draft_length, expected):
    folders = {}
    for name, length in (("target", target_length), ("draft", draft_length)):
        config = LLAMA | {"max_position_embeddings": length}
        folders[name] = str(write_model(tmp_path / name, {k: v for k, v in config.items() if v is not None}))
    pair = load_pair(**folders)
    assert pair.context_length == expected
    responses = list(stream_generate(pair, [5] * 50, max_tokens=-1))
    assert (len(responses), responses[-1].finish_reason) == (expected - 50, "length")


# Architectures ------------------------------------------------------------------------------------------------------


def test_a_recurrent_model_is_refused_in_a_pair_by_its_layers_and_decodes_alone(checkpoints, tmp_path):
    mamba = write_model(tmp_path / "mamba", MAMBA)
    for target, draft, role in ((mamba, checkpoints["draft"], "target"), (checkpoints["target"], mamba, "draft")):
        with pytest.raises(DiversedError) as error:
            load_pair(target=str(target), draft=str(draft))
        message = one_line(error)
        assert f"the {role} {mamba} cannot take part in speculative decoding" in message
        assert "ArraysCache layers" in message
        assert "--verifier none" in message

    pair = load_pair(target=str(mamba))
    assert pair.draft is None
    responses = list(stream_generate(pair, "Hello", verifier=None, sampling=Sampling(temp=0), max_tokens=8))
    tokens = pair.tokenizer.encode("Hello")
    for response in responses:  # one pass over everything, for each token
        token = mx.argmax(pair.target.model(mx.array([tokens]))[0, -1]).item()
        assert response.token == token
        tokens.append(token)


def test_a_pair_without_a_draft_says_so_when_a_verifier_is_asked_for(checkpoints):
    pair = load_pair(target=str(checkpoints["target"]))
    assert pair.draft is None
    with pytest.raises(DiversedError, match="this pair has no draft"):
        generate(pair, "Hello")
    assert len(list(stream_generate(pair, "Hello", verifier=None, max_tokens=5))) == 5


def test_a_model_whose_backbone_is_not_known_is_refused_by_name(tmp_path, monkeypatch):
    class Odd(llama.Model):
        def __init__(self, args):
            super().__init__(args)
            self.core = self.pop("model")

        def sanitize(self, weights):
            return {name.replace("model.", "core."): w for name, w in weights.items()}

    module = types.ModuleType("mlx_lm.models.odd")
    Odd.__module__ = module.__name__
    module.Model, module.ModelArgs = Odd, llama.ModelArgs
    monkeypatch.setitem(sys.modules, module.__name__, module)
    folder = write_model(tmp_path / "odd")
    change_json(folder / "config.json", lambda config: config.update(model_type="odd"))
    with pytest.raises(DiversedError) as error:
        load_pair(target=str(folder))
    assert one_line(error) == f"{folder}: the backbone of mlx_lm.models.odd is not known; use another architecture"


def test_a_model_whose_backbone_makes_the_logits_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "hf_olmo", types.ModuleType("hf_olmo"))  # which mlx-lm's olmo asks for
    config = {
        "model_type": "olmo",
        "d_model": 32,
        "n_layers": 2,
        "mlp_hidden_size": 64,
        "n_heads": 4,
        "vocab_size": VOCAB,
        "embedding_size": VOCAB,
    }
    folder = write_model(tmp_path / "olmo", config)
    with pytest.raises(DiversedError) as error:
        load_pair(target=str(folder))
    assert "the hidden states of a olmo model cannot be told from its logits" in one_line(error)


@pytest.mark.parametrize(
    "config", [LLAMA, GEMMA, LLAMA | {"tie_word_embeddings": True}], ids=["llama", "gemma", "tied"]
)
def test_hidden_states_are_what_the_head_of_the_model_reads(tmp_path, config):
    weights = random_weights(config, 2, 4.0)
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    lm = LM.load(write_model(tmp_path / "model", config, weights=weights))
    tokens = mx.array([3, 50, 120, 9])
    hidden, logits = lm(tokens, lm.make_cache())
    assert hidden.shape == (4, lm.hidden_size) == (4, 32)
    assert logits.shape == (4, lm.logits_size) == (4, VOCAB)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    assert mx.allclose(hidden @ head.T, logits, atol=1e-3).item()
    assert mx.allclose(lm.model(tokens[None])[0], logits, atol=1e-3).item()


# Checkpoints that are not whole -------------------------------------------------------------------------------------


def corrupt(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(os.urandom(4000))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def truncate_in_the_header(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def remove_one_weight(folder: Path) -> None:
    weights = random_weights(LLAMA, 0, 4.0)
    del weights["model.layers.1.mlp.up_proj.weight"]
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def change_a_shape(folder: Path) -> None:
    weights = random_weights(LLAMA, 0, 4.0)
    weights["model.norm.weight"] = mx.ones(7)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama",')


def config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def unsupported_type(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.update(model_type="nonesuch"))


def no_type(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.pop("model_type"))


def no_hidden_size(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.pop("hidden_size"))


def absurd_hidden_size(folder: Path) -> None:
    change_json(folder / "config.json", lambda config: config.update(hidden_size="many"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (corrupt, ""),
        (truncate, ""),
        (truncate_in_the_header, ""),
        (empty, ""),
        (remove_weights, "safetensors"),
        (remove_one_weight, "model.layers.1.mlp.up_proj.weight"),
        (change_a_shape, "model.norm.weight"),
        (remove_tokenizer, ""),
        (break_tokenizer, "JSON"),
        (break_config, "not valid JSON"),
        (config_is_a_list, ""),
        (remove_config, "it holds no config.json"),
        (unsupported_type, "nonesuch"),
        (no_type, "model_type"),
        (no_hidden_size, "hidden_size"),
        (absurd_hidden_size, ""),
    ],
)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_damaged_checkpoint_is_one_line_that_names_it(checkpoints, tmp_path, damage, said, role):
    folder = write_model(tmp_path / "damaged")
    damage(folder)
    other = {"target": "draft", "draft": "target"}[role]
    with pytest.raises(DiversedError) as error:
        load_pair(**{role: str(folder), other: str(checkpoints[other])})
    message = one_line(error)
    assert str(folder) in message
    assert said in message


def test_a_damaged_generation_config_is_as_good_as_none(tmp_path):
    folder = write_model(tmp_path / "model")
    (folder / "generation_config.json").write_text("{")
    assert load_pair(target=str(folder)).stop_tokens == {END}


# Where checkpoints are found ----------------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty Hub cache, and a machine without a network."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))

    def no_network(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    return folder


def put_in_cache(hub: Path, name: str) -> Path:
    """Put a checkpoint where `huggingface_hub` would have downloaded it to; returns the snapshot."""
    place = hub / f"models--{name.replace('/', '--')}"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(commit)
    (place / "blobs").mkdir()
    snapshot = place / "snapshots" / commit
    source = write_model(hub / "written")
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(source.iterdir())):
        blob = place / "blobs" / f"{number:040x}"
        shutil.move(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    source.rmdir()
    return snapshot


def test_a_snapshot_in_the_hub_cache_loads_without_a_network(hub):
    snapshot = put_in_cache(hub, "org/name")
    assert locate("org/name").samefile(snapshot)
    pair = load_pair(target="org/name", draft="org/name")
    assert pair.target.name == "org/name"
    assert len(list(stream_generate(pair, "Hello", max_tokens=5))) == 5


def test_an_alias_whose_snapshot_is_in_the_cache_loads_without_a_network(hub):
    put_in_cache(hub, ALIASES["1b"])
    assert load_pair(target="1b").target.name == ALIASES["1b"]


def test_a_missing_model_without_a_network_is_one_line(hub):
    with pytest.raises(DiversedError) as error:
        load_pair(target="org/absent")
    message = one_line(error)
    assert "org/absent is not in the local Hub cache and the Hub cannot be reached" in message


def test_a_missing_model_in_offline_mode_is_one_line(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    put_in_cache(hub, "org/name")
    assert load_pair(target="org/name").target.name == "org/name"
    with pytest.raises(DiversedError) as error:
        load_pair(target="org/name", draft="org/absent")
    assert "org/absent is not in the local Hub cache" in one_line(error)


@pytest.mark.slow
def test_a_fresh_process_in_offline_mode_loads_from_hf_home_and_refuses_the_rest_in_one_line(tmp_path):
    put_in_cache(tmp_path / "hub", "org/name")
    script = (
        "from diversed_mlx import DiversedError, generate, load_pair\n"
        "print(len(generate(load_pair('org/name', 'org/name'), 'Hello', max_tokens=5)) > 0)\n"
        "try: load_pair('org/absent')\n"
        "except DiversedError as error: print(error)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | {
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "True"
    assert len(lines) == 2
    assert "org/absent is not in the local Hub cache" in lines[1]


def test_a_snapshot_without_its_weights_is_one_line(hub):
    (put_in_cache(hub, "org/name") / "model.safetensors").unlink()
    with pytest.raises(DiversedError, match="org/name") as error:
        load_pair(target="org/name")
    one_line(error)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonesuch", "no such folder, and not the name of a model"),
        ("./org/name", "no such folder"),
        ("/no/such/folder", "no such folder"),
        ("a/b/c", "no such folder"),
        ("org/na me", "not a valid Hub id"),
        ("", ""),
    ],
)
def test_a_name_that_can_be_no_model_is_one_line(hub, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DiversedError) as error:
        load_pair(target=name)
    assert said in one_line(error)


def test_a_file_is_no_model(checkpoints):
    file = checkpoints["target"] / "model.safetensors"
    with pytest.raises(DiversedError, match="is a file; give the folder of a model") as error:
        load_pair(target=str(file))
    one_line(error)


def test_a_local_folder_named_like_an_alias_wins(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    assert resolve("1b") == ALIASES["1b"]
    write_model(tmp_path / "1b")
    write_model(tmp_path / "tiny-draft")
    folders = str((tmp_path / "1b").resolve()), str((tmp_path / "tiny-draft").resolve())
    assert resolve("1b") == folders[0]
    pair = load_pair(target="1b", draft="tiny-draft")
    assert (pair.target.name, pair.draft.name) == folders


def test_an_alias_of_the_embedded_pair_is_a_folder_or_one_line():
    for name in EMBEDDED:
        try:
            assert Path(resolve(name)).is_dir()
        except DiversedError as error:
            assert "holds no embedded pair" in str(error)  # noqa: PT017


# What is loaded -----------------------------------------------------------------------------------------------------


def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The list of what gets loaded from now on."""
    loaded, load = [], LM.load.__func__

    def counted(cls, source, **options):
        loaded.append(str(source))
        return load(cls, source, **options)

    monkeypatch.setattr(LM, "load", classmethod(counted))
    return loaded


def test_only_what_is_used_is_loaded(checkpoints, monkeypatch):
    loaded = loads(monkeypatch)
    target, draft = str(checkpoints["target"]), str(checkpoints["draft"])
    load_pair(target)
    assert loaded == [target]
    loaded.clear()
    load_pair(target, draft)
    assert sorted(loaded) == sorted([target, draft])


def test_a_model_that_drafts_for_itself_is_loaded_once(checkpoints, monkeypatch):
    loaded = loads(monkeypatch)
    target = str(checkpoints["target"])
    pair = load_pair(target, target)
    assert loaded == [target]
    assert pair.draft is pair.target


def test_models_that_cannot_fit_are_refused_before_they_are_read_and_a_pair_that_fits_is_named(
    checkpoints, monkeypatch
):
    loaded = loads(monkeypatch)
    target, draft = str(checkpoints["target"]), str(checkpoints["draft"])
    size = (checkpoints["target"] / "model.safetensors").stat().st_size
    monkeypatch.setattr(diversed_mlx.memory, "available_bytes", lambda: int(1.5 * size))
    assert load_pair(target).draft is None  # the target alone fits, and so does one copy of it in both roles
    assert load_pair(target, target).draft is not None
    loaded.clear()
    with pytest.raises(DiversedError, match="use smaller models") as error:
        load_pair(target, draft)
    assert target in one_line(error)
    assert loaded == []
    monkeypatch.setattr(diversed_mlx.memory, "weight_bytes", lambda source: 20e9)
    monkeypatch.setattr(diversed_mlx.memory, "available_bytes", lambda: int(8e9))
    with pytest.raises(DiversedError, match=r"take 40.0 GB and this machine has 8.0 GB .* --draft 1b --target 8b fits"):
        load_pair(target, draft)


# Caches -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_kv_size": 15}, "max_kv_size must be at least 16"),
        ({"kv_bits": 7}, "kv_bits must be one of 2, 3, 4, 5, 6, 8, not 7"),
        ({"max_kv_size": 32, "kv_bits": 8}, "exclude each other"),
        ({"kv_bits": 8}, "heads must be a multiple of 64 wide"),
    ],
)
def test_a_cache_that_a_model_cannot_have_is_refused(pair, options, said):
    with pytest.raises(DiversedError, match=said) as error:
        pair.make_context(**options)
    one_line(error)
