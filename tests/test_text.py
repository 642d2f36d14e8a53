"""Tokens to text: the detokenizer, stop strings, and every field of the responses, worked out a second time."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from statistics import mean

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import greedy_sampler, make_logits_processors
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tiny import END, VOCAB
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from diversed_mlx import (
    Cascade,
    DiversedError,
    Dynamic,
    EnsembleHead,
    Lenient,
    Lossless,
    Options,
    Pair,
    Response,
    Sampling,
    Static,
    generate,
    stream_generate,
)
from diversed_mlx.draft_length import make_draft_length
from diversed_mlx.speculate import Decoder
from diversed_mlx.text import Detokenizer, StopStrings

GREEDY = Sampling(temp=0)
PROMPT = "Tell me"  # 7 tokens
TEXTS = (
    "plain words, twice",
    "día, naïve, œuvre",
    "smile 🙂 and family 👨‍👩‍👧 and flag 🇫🇷!",
    "日本語のテキスト",
    "🙂",
    "  two spaces\n\n\tand tabs ",
)


def byte_ids(pair: Pair) -> dict[int, int]:
    """Token of each byte, by the table of GPT-2: printable bytes stand for themselves, the rest begin at 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    names = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocabulary = pair.tokenizer.get_vocab()
    return {b: vocabulary[name] for b, name in names.items()}


def tokens_of(pair: Pair, data: bytes | str) -> list[int]:
    ids = byte_ids(pair)
    return [ids[b] for b in (data.encode() if isinstance(data, str) else data)]


def forced(tokens: Sequence[int], start: int = len(PROMPT)) -> Callable[[mx.array, mx.array], mx.array]:
    """A logits processor after which the answer begins with these tokens."""

    def processor(history: mx.array, logits: mx.array) -> mx.array:
        at = history.shape[0] - start
        if at >= len(tokens):
            return logits
        return mx.where(mx.arange(logits.shape[-1])[None] == tokens[at], 0.0, -mx.inf)

    return processor


def say(pair: Pair, data: bytes | str, end: bool = True, **options) -> list[Response]:
    """The responses of an answer that consists of these bytes, a stop token, and more behind it."""
    tokens = tokens_of(pair, data) + ([END] if end else []) + tokens_of(pair, "LEAK")
    options = {"num_draft_tokens": 3, "sampling": GREEDY, "max_tokens": 200} | options
    return list(stream_generate(pair, PROMPT, logits_processors=[forced(tokens)], **options))


def text_of(responses: Sequence[Response]) -> str:
    return "".join(r.text for r in responses)


# Detokenizer --------------------------------------------------------------------------------------------------------


def sentencepiece(kind: str) -> TokenizerWrapper:
    """A tokenizer as of Llama 2 (strips the first space), Gemma (keeps it) or T5 (Metaspace)."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["▁", "▁▁", "▁the", "▁a", "the", "a", "n", "é", "日本", ".", ",", "▁🙂", "\n"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    replace, bytes_, fuse = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()
    tokenizer.decoder = {
        "llama": decoders.Sequence([replace, bytes_, fuse, decoders.Strip(" ", 1, 0)]),
        "gemma": decoders.Sequence([replace, bytes_, fuse]),
        "metaspace": decoders.Sequence([bytes_, decoders.Metaspace("▁", "always")]),
    }[kind]
    return TokenizerWrapper(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>"))


def stream(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.add, tokens), detokenizer.finish()]


def whole(tokenizer: TokenizerWrapper, tokens: Sequence[int]) -> str:
    return tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("seed", range(5))
def test_any_bytes_stream_as_decoding_them_at_once_gives_them(pair, seed):
    rng, ids = random.Random(seed), byte_ids(pair)
    for _ in range(60):
        # Noise, pieces of characters, characters, and special tokens.
        parts = [
            rng.choice([rng.randbytes(rng.randint(1, 4)), rng.choice("aé日🙂 \n").encode()[: rng.randint(1, 4)]])
            for _ in range(rng.randint(1, 12))
        ]
        tokens = [ids[b] for b in b"".join(parts)]
        tokens.insert(rng.randrange(len(tokens) + 1), VOCAB - 1)
        assert "".join(stream(pair.tokenizer, tokens)) == whole(pair.tokenizer, tokens)


def test_the_byte_table_of_these_tests_is_right(pair):
    for text in TEXTS:
        assert tokens_of(pair, text) == pair.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_comes_out_once_it_is_whole_and_not_later(pair, text):
    pieces = stream(pair.tokenizer, tokens_of(pair, text))
    assert "".join(pieces) == text
    # One byte a token: each character belongs to its last byte, all other pieces are empty.
    expected = [piece for c in text for piece in [""] * (len(c.encode()) - 1) + [c]]
    assert pieces == [*expected, ""]


def test_bytes_that_never_become_a_character_come_out_as_replacements_at_the_end(pair):
    tokens = tokens_of(pair, b"ok\xf0\x9f\x99")
    assert stream(pair.tokenizer, tokens) == ["o", "k", "", "", "", "\ufffd"]


@pytest.mark.parametrize("kind", ["llama", "gemma", "metaspace"])
@pytest.mark.parametrize("seed", range(4))
def test_sentencepiece_tokens_stream_as_decoding_them_at_once_gives_them(kind, seed):
    rng, tokenizer = random.Random(seed), sentencepiece(kind)
    vocabulary = tokenizer.get_vocab()
    words = [piece for piece in vocabulary if not piece.startswith("<0x")]
    for _ in range(60):
        tokens: list[int] = []
        for _ in range(rng.randint(1, 15)):
            if rng.random() < 0.7:
                tokens.append(vocabulary[rng.choice(words)])
            else:  # characters in bytes
                data = "".join(rng.choices("aé日🙂 ", k=rng.randint(1, 3))).encode()
                tokens += [vocabulary[f"<0x{b:02X}>"] for b in data]
        assert "".join(stream(tokenizer, tokens)) == whole(tokenizer, tokens)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_broken_sentencepiece_bytes_are_replaced_as_decoding_at_once_does(kind):
    tokenizer = sentencepiece(kind)
    vocabulary = tokenizer.get_vocab()
    for data in (b"\xff", b"\xf0\x9f", b"\xe6\x97"):
        tokens = [vocabulary["▁the"], *(vocabulary[f"<0x{b:02X}>"] for b in data), vocabulary["▁a"], vocabulary["n"]]
        assert "".join(stream(tokenizer, tokens)) == whole(tokenizer, tokens)
        assert "".join(stream(tokenizer, tokens[:-2])) == whole(tokenizer, tokens[:-2])


def test_leading_spaces_are_those_of_decoding_at_once():
    tokenizer = sentencepiece("llama")
    ids = tokenizer.get_vocab()
    assert stream(tokenizer, [ids["▁the"], ids["▁a"], ids["n"]]) == ["the", " a", "n", ""]
    assert "".join(stream(tokenizer, [ids["▁"], ids["▁"], ids["▁the"]])) == "  the"


# Stop strings -------------------------------------------------------------------------------------------------------


def reference_stop(text: str, stop: Sequence[str]) -> str | None:
    """Text up to the stop string that begins first, or None."""
    found = [text.index(s) for s in stop if s in text]
    return text[: min(found)] if found else None


def could_begin_a_stop(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of a text that a stop string begins with."""
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)


@pytest.mark.parametrize("seed", range(5))
def test_stop_strings_in_any_pieces_are_cut_exactly_and_never_leak(seed):
    rng = random.Random(seed)
    for _ in range(300):
        stop = ["".join(rng.choices("abé", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        # Inside another, but not at its beginning: then it matters which one is complete first.
        if any(short in long[1:] for short, long in itertools.permutations(stop, 2)):
            continue
        text = "".join(rng.choices("abé🙂", k=rng.randint(0, 14)))
        expected = reference_stop(text, stop)
        stops, given, read, stopped, rest = StopStrings(stop), "", "", False, text
        while rest and not stopped:
            size = rng.randint(0, 4)
            piece, rest = rest[:size], rest[size:]
            read += piece
            new, stopped = stops.add(piece)
            given += new
            assert stopped == any(s in read for s in stop)
            if not stopped:  # everything that cannot become a stop string is out, and nothing else
                assert given == read[: len(read) - could_begin_a_stop(read, stop)]
        if expected is None:
            assert given + stops.finish() == text
        else:
            assert given == expected


@pytest.mark.parametrize(
    ("pieces", "stop", "expected"),
    [
        (["one STOP two"], ["STOP"], "one "),
        (["one ST", "OP two"], ["STOP"], "one "),
        (["one S", "S", "TOP"], ["STOP"], "one S"),
        (["aab"], ["ab", "b"], "a"),  # the earliest wins, in whatever order they are given
        (["aab"], ["b", "ab"], "a"),
        (["xab", "c"], ["abc", "ab"], "x"),  # one that begins another is complete first
        (["xab", "c"], ["ab", "abc"], "x"),
        (["abab", "abc"], ["ababc"], "ab"),  # an overlap with itself
        (["abcd"], ["abcd", "c"], "ab"),  # one inside another: the same in one piece
        (["a", "b", "c", "d"], ["abcd", "c"], "ab"),  # and in four
        (["ab", "ac"], ["abab", "aac"], "abac"),  # none
        (["no", "ne"], [], "none"),
    ],
)
def test_stop_strings_by_hand(pieces, stop, expected):
    stops, given = StopStrings(stop), ""
    for piece in pieces:
        new, stopped = stops.add(piece)
        given += new
        if stopped:
            assert given == expected
            return
    assert given + stops.finish() == expected


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("smile 🙂 done", "🙂", "smile "),
        ("smile 🙂 done", "🙂 d", "smile "),
        ("smile 🙂 done", "e 🙂", "smil"),
        ("día é", " é", "día"),
        ("a\n\nb", "\n\n", "a"),
        ("stop", "stop", ""),
        ("abcdefgh", "cdefg", "ab"),
    ],
)
@pytest.mark.parametrize(
    ("num_draft_tokens", "verifier"), [(1, None), (1, Lossless()), (4, Lossless()), (9, Lossless())]
)
def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(
    pair, text, stop, expected, num_draft_tokens, verifier
):
    responses = say(pair, text, stop=["never", stop], num_draft_tokens=num_draft_tokens, verifier=verifier)
    assert text_of(responses) == expected
    assert [r.finish_reason for r in responses] == [None] * (len(responses) - 1) + ["stop"]
    needed = len((expected + stop).encode())  # one byte a token
    assert [r.token for r in responses] == tokens_of(pair, text)[:needed]
    assert responses[-1].stats.generated_tokens == needed
    for n in range(1, len(responses)):
        assert expected.startswith(text_of(responses[:n]))


@pytest.mark.parametrize("end", [True, False])
def test_the_beginning_of_a_stop_string_is_flushed_when_the_answer_ends(pair, end):
    responses = say(pair, "value STO", end=end, stop=["STOP"], max_tokens=9 + end)
    assert [r.text for r in responses] == [*"value ", "", "", *(["", "STO"] if end else ["STO"])]
    assert responses[-1].finish_reason == ("stop" if end else "length")


def test_half_a_character_is_flushed_when_the_answer_ends(pair):
    assert text_of(say(pair, b"ok \xf0\x9f")) == "ok \ufffd"
    assert text_of(say(pair, b"ok \xf0\x9f", end=False, max_tokens=5)) == "ok \ufffd"


def test_a_stop_string_that_the_last_allowed_token_completes_is_a_stop(pair):
    responses = say(pair, "a STOP b", stop=["STOP"], max_tokens=6)
    assert (text_of(responses), responses[-1].finish_reason) == ("a ", "stop")


def test_invalid_bytes_can_complete_a_stop_string_only_once_they_are_final(pair):
    responses = say(pair, b"ab\xf0\x9f\x99\x82cd", stop=["\ufffd"])
    assert (text_of(responses), responses[-1].finish_reason) == ("ab🙂cd", "stop")
    assert text_of(say(pair, b"ab\xf0cd", stop=["\ufffd"])) == "ab"


# Responses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 4, 9])
def test_characters_split_over_tokens_and_rounds_stay_whole(pair, num_draft_tokens):
    for text in TEXTS:
        responses = say(pair, text, num_draft_tokens=num_draft_tokens)
        assert text_of(responses) == text
        assert all("\ufffd" not in r.text for r in responses)


@pytest.mark.parametrize("at", range(9))
def test_nothing_behind_a_stop_token_reaches_the_user(pair, at):
    responses = say(pair, "abcdefghi"[:at], num_draft_tokens=4)
    assert text_of(responses) == "abcdefghi"[:at]
    assert [r.token for r in responses] == [*tokens_of(pair, "abcdefghi"[:at]), END]
    assert [r.finish_reason for r in responses] == [None] * at + ["stop"]
    assert responses[-1].text == ""
    # Rounds of four drafted tokens and a bonus; what was drafted behind the stop token does not count.
    full, rest = divmod(at, 5)
    stats = responses[-1].stats
    assert (stats.rounds, stats.generated_tokens) == (full + 1, at + 1)
    assert stats.proposed == stats.accepted == 4 * full + min(rest + 1, 4)


@pytest.mark.parametrize("verifier", [None, Lossless(), Static(target_weight=0.0)])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 4, 64, "auto"])
def test_max_tokens_is_exact(pair, verifier, num_draft_tokens):
    for max_tokens in (1, 2, 3, 5, 6, 11):
        responses = list(
            stream_generate(
                pair, PROMPT, verifier=verifier, num_draft_tokens=num_draft_tokens, max_tokens=max_tokens, seed=4
            )
        )
        assert len(responses) == max_tokens
        assert [r.finish_reason for r in responses] == [None] * (max_tokens - 1) + ["length"]
    assert list(stream_generate(pair, PROMPT, verifier=verifier, max_tokens=0)) == []


def blocks_of(responses: Sequence[Response]) -> list[list[Response]]:
    """The responses a round: each ends with the one token that the target gave itself."""
    blocks: list[list[Response]] = [[]]
    for response in responses:
        blocks[-1].append(response)
        if response.origin != "accepted":
            blocks.append([])
    return [block for block in blocks if block]


def proposed_in(block: Sequence[Response], room: int, num_draft_tokens: int) -> int:
    """Drafted tokens of a round, when so many tokens may still come."""
    if block[-1].origin == "plain":
        return 0
    if block[-1].origin == "accepted":  # the answer ended with it
        return len(block)
    return min(num_draft_tokens, room - 1)


VERIFIERS = {
    "none": None,
    "lossless": Lossless(),
    "static": Static(target_weight=0.4),
    "dynamic": Dynamic(EnsembleHead(32, 32), strictness=1.0),
    "lenient": Lenient(lenience=0.3),
    "opt": Cascade(alpha=0.2),
    "token": Cascade(alpha=0.3, rule="token"),
}


@pytest.mark.parametrize("temp", [0, 1])
@pytest.mark.parametrize("name", VERIFIERS)
def test_the_figures_follow_from_the_responses(pair, name, temp):
    max_tokens, num_draft_tokens = 37, 4
    responses = list(
        stream_generate(
            pair,
            PROMPT,
            verifier=VERIFIERS[name],
            sampling=Sampling(temp=temp),
            num_draft_tokens=num_draft_tokens,
            max_tokens=max_tokens,
            seed=5,
        )
    )
    stats, blocks = responses[-1].stats, blocks_of(responses)
    given, proposed = 0, 0
    for block in blocks:
        proposed += proposed_in(block, max_tokens - given, num_draft_tokens)
        given += len(block)
        if block[-1].origin == "bonus":
            assert len(block) == min(num_draft_tokens, max_tokens - given + len(block) - 1) + 1
    accepted = sum(r.from_draft for r in responses)
    assert (stats.prompt_tokens, stats.cached_tokens) == (7, 0)
    assert stats.generated_tokens == len(responses)
    assert (stats.rounds, stats.proposed, stats.accepted) == (len(blocks), proposed, accepted)
    assert stats.tokens_per_round == len(responses) / len(blocks)
    assert stats.acceptance_rate == (accepted / proposed if proposed else None)
    assert stats.peak_memory_gb > 0
    assert stats.generation_tps > 0
    assert stats.prompt_tps > 0
    if name == "none":
        assert {r.origin for r in responses} == {"plain"}
    else:
        assert 0 < accepted < proposed

    for number, response in enumerate(responses, start=1):
        assert response.stats.generated_tokens == number
        assert response.stats.accepted == sum(r.from_draft for r in responses[:number])
        assert response.from_draft == (response.origin == "accepted")
    verified = [r.target_weight for r in responses if r.origin in ("accepted", "corrected")]
    if name in ("none", "lenient", "token"):
        assert set(verified) <= {None}
        assert stats.mean_target_weight is None
    else:
        assert stats.mean_target_weight == pytest.approx(mean(verified))
    expected = {"lossless": {1.0}, "static": {0.4}, "dynamic": {1 / (1 + math.exp(-1.0))}, "opt": {0.0, 1.0}}
    if name in expected:
        assert all(any(w == pytest.approx(e) for e in expected[name]) for w in verified)
    assert all(r.target_weight == 1.0 for r in responses if r.origin == "bonus")


def test_a_block_ends_with_its_stop_token_and_counts_no_draft_behind_it(pair):
    context = pair.make_context()
    context.start(tokens_of(pair, PROMPT))
    decoder = Decoder(
        pair,
        context,
        verifier=Lossless(),
        sampling=GREEDY,
        processors=[forced([*tokens_of(pair, "abcdefg"), END, *tokens_of(pair, "LEAK")])],
        seed=0,
        prefill_step_size=2048,
        trace=False,
    )
    first, second = decoder.blocks(make_draft_length(4), None)
    assert first.tokens == tokens_of(pair, "abcde")
    assert first.origins == ["accepted"] * 4 + ["bonus"]
    assert (first.proposed, first.accepted) == (4, 4)
    assert second.tokens == [*tokens_of(pair, "fg"), END]
    assert second.origins == ["accepted"] * 3
    assert second.target_weights == [1.0] * 3
    assert (second.proposed, second.accepted) == (3, 3)


def test_a_stop_string_inside_a_draft_leaves_the_figures_to_what_was_handed_out(pair):
    responses = say(pair, "abcdefgh", stop=["g"], num_draft_tokens=4)
    # abcd e(bonus) fg: the round that "g" ends counts two of its four drafts.
    assert [r.origin for r in responses] == ["accepted"] * 4 + ["bonus"] + ["accepted"] * 2
    stats = responses[-1].stats
    assert (stats.rounds, stats.proposed, stats.accepted, stats.generated_tokens) == (2, 6, 6, 7)


def test_a_prompt_may_be_text_ids_or_an_array(pair):
    ids = tokens_of(pair, PROMPT)
    texts = {
        generate(pair, prompt, sampling=GREEDY, max_tokens=12) for prompt in (PROMPT, ids, tuple(ids), mx.array(ids))
    }
    assert texts == {text_of(list(stream_generate(pair, PROMPT, sampling=GREEDY, max_tokens=12)))}


def test_the_same_seed_gives_the_same_answer_and_another_seed_another(pair):
    answers = [[r.token for r in stream_generate(pair, PROMPT, max_tokens=20, seed=seed)] for seed in (7, 7, 8)]
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens must be from 1 to 64"),
        ({"num_draft_tokens": 65}, "num_draft_tokens must be from 1 to 64"),
        ({"num_draft_tokens": "some"}, "num_draft_tokens must be"),
        ({"max_tokens": -2}, "max_tokens must be -1"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 2**64}, "seed must be"),
        ({"stop": "text"}, "stop must be a list"),
        ({"stop": ["a", ""]}, "none of them empty"),
        ({"prefill_step_size": 0}, "prefill_step_size must be at least 1"),
    ],
)
def test_an_option_out_of_its_range_is_refused(pair, options, message):
    with pytest.raises(DiversedError, match=message):
        Options(**options)
    with pytest.raises(DiversedError, match=message):
        generate(pair, PROMPT, **options)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ([], "the prompt is empty"),
        ([1, VOCAB], f"token {VOCAB} of the prompt is outside the vocabulary"),
        ([-1], "token -1 of the prompt is outside the vocabulary"),
        ("half \ud83d", "not valid UTF-8"),
        ([5] * 2048, "the prompt has 2048 tokens and the context of this pair holds 2048"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_refused(pair, prompt, message):
    with pytest.raises(DiversedError, match=message):
        generate(pair, prompt, max_tokens=1)


def test_the_largest_seed_works(pair):
    assert len(list(stream_generate(pair, PROMPT, seed=2**64 - 1, max_tokens=3))) == 3


# Logits processors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temp", [0, 1])
@pytest.mark.parametrize("verifier", [Lossless(), Static(target_weight=0.5)])
def test_processors_see_every_token_before_each_position_on_both_models(padded_pair, verifier, temp):
    num_draft_tokens = 3
    seen: dict[str, list[list[int]]] = {"target": [], "draft": []}

    def record(history: mx.array, logits: mx.array) -> mx.array:
        assert logits.shape[0] == 1
        model = "target" if logits.shape[1] == padded_pair.target.logits_size else "draft"
        seen[model].append(history.tolist())
        return logits

    responses = list(
        stream_generate(
            padded_pair,
            PROMPT,
            verifier=verifier,
            sampling=Sampling(temp=temp),
            num_draft_tokens=num_draft_tokens,
            max_tokens=20,
            seed=1,
            logits_processors=[record],
        )
    )
    prompt, tokens = tokens_of(padded_pair, PROMPT), [r.token for r in responses]
    assert {r.origin for r in responses} >= {"accepted", "corrected"}
    before = [prompt + tokens[:i] for i in range(len(tokens))]
    assert all(history in seen["target"] for history in before)
    for history, response in zip(before, responses, strict=True):
        if response.origin in ("accepted", "corrected"):
            assert history in seen["draft"]
    # And nothing else than committed tokens with less than a round's drafts behind them.
    for history in seen["target"] + seen["draft"]:
        committed = max(n for n in range(len(tokens) + 1) if history[: len(prompt) + n] == prompt + tokens[:n])
        assert history[: len(prompt)] == prompt
        assert len(history) - len(prompt) - committed <= num_draft_tokens


def test_processors_see_every_token_in_plain_decoding(pair):
    seen = []

    def record(history: mx.array, logits: mx.array) -> mx.array:
        seen.append(history.tolist())
        return logits

    options = {"verifier": None, "max_tokens": 9, "logits_processors": [record]}
    tokens = [r.token for r in stream_generate(pair, PROMPT, **options)]
    assert seen == [tokens_of(pair, PROMPT) + tokens[:i] for i in range(9)]


PROCESSORS = {
    "repetition": {"repetition_penalty": 1.4, "repetition_context_size": 12},
    "presence": {"presence_penalty": 1.0},
    "frequency": {"frequency_penalty": 0.7},
    "bias": {"logit_bias": {31: 3.0, 177: -2.0, 198: -5.0}},
    "all": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {2: -mx.inf}},
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("which", ["pair", "adverse_pair", "gemma_pair"])
def test_processors_give_the_same_greedy_text_as_mlx_lm_without_speculation(name, which, request):
    pair = request.getfixturevalue(which)
    prompt, processors = tokens_of(pair, PROMPT), make_logits_processors(**PROCESSORS[name])
    theirs = generate_step(
        mx.array(prompt), pair.target.model, max_tokens=20, logits_processors=processors, sampler=greedy_sampler
    )
    expected = [int(token) for token, _ in theirs]
    plain = list(generate_step(mx.array(prompt), pair.target.model, max_tokens=20, sampler=greedy_sampler))
    assert expected != [int(token) for token, _ in plain], "the processors change nothing here"
    for options in (
        {"verifier": None},
        {"num_draft_tokens": 1},
        {"num_draft_tokens": 5},
        {"verifier": Static(target_weight=1)},
    ):
        responses = stream_generate(
            pair, prompt, sampling=GREEDY, max_tokens=20, logits_processors=processors, **options
        )
        assert [r.token for r in responses] == expected


@pytest.mark.parametrize("verifier", [None, Lossless(), Static(target_weight=0.3), Lenient(lenience=0.2), Cascade()])
def test_a_banned_token_never_comes(pair, verifier):
    free = [r.token for r in stream_generate(pair, PROMPT, verifier=verifier, max_tokens=60, seed=2)]
    banned = sorted(set(free))[:10]
    processors = make_logits_processors(logit_bias=dict.fromkeys(banned, -mx.inf))
    for seed in range(3):
        responses = stream_generate(
            pair, PROMPT, verifier=verifier, max_tokens=40, seed=seed, logits_processors=processors
        )
        assert not {r.token for r in responses} & set(banned)
