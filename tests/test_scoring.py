from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen2ForCausalLM

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.adapters import Adapter, Row, SummedCodebooks, TextOnly
from s2sbench_callback.items import Audio, Context
from s2sbench_callback.live_model import LiveModel, accelerator_tokens
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.prompts import Condition
from s2sbench_callback.scoring import LossTable, Scorer, encode
from s2sbench_callback.speech import load_waveform

CPU = torch.device("cpu")
EXACT_NATS = 1e-5


def audio_tokens(model: nn.Module, adapter: Adapter):  # type: ignore[no-untyped-def]
    return lambda audio: adapter.encode_audio(model, load_waveform(audio, adapter.sample_rate))


def score(model: nn.Module, adapter: Adapter, benchmark: Benchmark, condition: Condition, max_tokens: int = 512, packed: bool = True) -> LossTable:
    with torch.no_grad():
        questions = encode(benchmark, condition, adapter, audio_tokens(model, adapter))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return Scorer(adapter, max_tokens, packed).score(LiveModel(model, model, CPU), questions)


@torch.no_grad()
def slow_losses(model: MiniSpeechLM, benchmark: Benchmark, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
    """The protocol written out once more: one candidate at a time, the whole model, the whole vocabulary."""
    tokenizer = build_text_tokenizer()
    start, end = tokenizer.convert_tokens_to_ids(["<|audio_start|>", "<|audio_end|>"])
    nats, counts = [], []
    for item in benchmark.items:
        row, row_counts = [], []
        for context, candidate in zip(item.contexts, item.candidates, strict=True):
            positions: list[list[int]] = []
            if condition == "t2t":
                positions += [[i, -1, -1, -1] for i in tokenizer.encode(context.text)]
                ids = tokenizer.encode(" " + candidate)
            else:
                positions += [[i, -1, -1, -1] for i in tokenizer.encode("Below is a segment of alternating speech and text content: ")]
                assert context.audio is not None
                codes = model.audio_tokenizer(load_waveform(context.audio, 16_000))
                positions += [[start, -1, -1, -1], *([-1, *frame] for frame in codes.tolist()), [end, -1, -1, -1]]
                ids = tokenizer.encode(candidate)
            before = len(positions)
            positions += [[i, -1, -1, -1] for i in ids]
            log_probabilities = model(torch.tensor([positions])).text_logits[0].double().log_softmax(-1)
            row.append(-sum(float(log_probabilities[before - 1 + n, i]) for n, i in enumerate(ids)))
            row_counts.append(len(ids))
        nats.append(row)
        counts.append(row_counts)
    return np.array(nats), np.array(counts)


@pytest.mark.parametrize("condition", ["s2t", "t2t"])
def test_losses_are_those_of_a_slow_independent_computation(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark, condition: Condition) -> None:
    table = score(tiny_speech_lm, mini_adapter(), mini_set, condition)
    nats, counts = slow_losses(tiny_speech_lm, mini_set, condition)
    np.testing.assert_array_equal(table.tokens, counts)
    np.testing.assert_allclose(table.losses, nats / counts, atol=EXACT_NATS)


@pytest.mark.parametrize("condition", ["s2t", "t2t"])
@pytest.mark.parametrize("max_tokens", [1, 150, 400, 4096])
def test_packed_and_plain_agree_on_the_speech_lm(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark, condition: Condition, max_tokens: int) -> None:
    plain = score(tiny_speech_lm, mini_adapter(), mini_set, condition, packed=False)
    packed = score(tiny_speech_lm, mini_adapter(), mini_set, condition, max_tokens)
    np.testing.assert_allclose(packed.losses, plain.losses, atol=EXACT_NATS)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_and_plain_agree_on_qwen2(tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark, attention: str) -> None:
    tiny_qwen2.set_attn_implementation(attention)
    adapter = TextOnly(build_text_tokenizer())
    packed = score(tiny_qwen2, adapter, mini_set, "t2t", 300)
    plain = score(tiny_qwen2, adapter, mini_set, "t2t", packed=False)
    np.testing.assert_allclose(packed.losses, plain.losses, atol=EXACT_NATS)


def test_order_does_not_matter(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark) -> None:
    turned = replace(mini_set, items=mini_set.items[::-1])
    forward, backward = (score(tiny_speech_lm, mini_adapter(), benchmark, "s2t") for benchmark in (mini_set, turned))
    np.testing.assert_allclose(backward.losses[::-1], forward.losses, atol=EXACT_NATS)
    assert backward.item_ids == forward.item_ids[::-1]


def test_speech_changes_the_spoken_score_alone(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark) -> None:
    first, second = mini_set.items[0], mini_set.items[1]
    swapped = replace(first, contexts=tuple(replace(c, audio=second.contexts[0].audio) for c in first.contexts))
    changed = replace(mini_set, items=(swapped, *mini_set.items[1:]))
    for condition, same in (("s2t", False), ("t2t", True)):
        before, after = (score(tiny_speech_lm, mini_adapter(), benchmark, condition) for benchmark in (mini_set, changed))
        assert bool(np.allclose(before.losses[0], after.losses[0], atol=1e-7)) is same
        np.testing.assert_allclose(before.losses[1:], after.losses[1:], atol=EXACT_NATS)


def test_contexts_of_their_own_are_scored_each_with_its_own(tiny_speech_lm: MiniSpeechLM) -> None:
    texts = ("It rained all day.", "The sun was very hot.")
    endings = ("He was wet.", "He was dry.")
    mixed = Benchmark("mixed", "en", (Item("q", tuple(Context(text) for text in texts), endings, 0),))
    table = score(tiny_speech_lm, mini_adapter(), mixed, "t2t")
    for index, text in enumerate(texts):
        alone = Benchmark("alone", "en", (Item("q", (Context(text),) * 2, endings, 0),))
        expected = score(tiny_speech_lm, mini_adapter(), alone, "t2t")
        np.testing.assert_allclose(table.losses[0, index], expected.losses[0, index], atol=EXACT_NATS)


def test_questions_with_different_numbers_of_candidates(tiny_qwen2: Qwen2ForCausalLM) -> None:
    contexts = (Context("It rained."),)
    items = (Item("two", contexts * 2, ("a", "b"), 0), Item("four", contexts * 4, ("a", "b", "c", "d"), 3))
    table = score(tiny_qwen2, TextOnly(build_text_tokenizer()), Benchmark("mixed", "zh", items), "t2t")
    assert table.tokens.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert np.isnan(table.nats[0, 2:]).all()
    np.testing.assert_allclose(table.nats[0, :2], table.nats[1, :2], atol=EXACT_NATS)


class BlindToMasks(TextOnly):
    """Reads a packed row as one long text."""

    def logits(self, model: nn.Module, row: Row) -> torch.Tensor:
        return super().logits(model, replace(row, segments=None, positions=torch.arange(len(row.positions))))


class RefusesMasks(TextOnly):
    def logits(self, model: nn.Module, row: Row) -> torch.Tensor:
        if row.mask is not None:
            raise NotImplementedError("no 4-D mask here")
        return super().logits(model, row)


@pytest.mark.parametrize(
    ("adapter_class", "message"), [(BlindToMasks, "packed and plain scoring differ by"), (RefusesMasks, "NotImplementedError: no 4-D mask here")]
)
def test_models_that_cannot_read_packed_rows_are_scored_plainly_and_say_so_once(
    tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark, adapter_class: type[TextOnly], message: str
) -> None:
    adapter = adapter_class(build_text_tokenizer())
    questions = encode(mini_set, "t2t", adapter, audio_tokens(tiny_qwen2, adapter))
    scorer = Scorer(adapter, 300)
    with pytest.warns(UserWarning, match=f"one row a candidate from now on.*{message}") as caught:
        table = scorer.score(LiveModel(tiny_qwen2, tiny_qwen2, CPU), questions)
        scorer.score(LiveModel(tiny_qwen2, tiny_qwen2, CPU), questions)
    assert len(caught) == 1
    assert not scorer.packed
    expected = score(tiny_qwen2, TextOnly(build_text_tokenizer()), mini_set, "t2t", packed=False)
    np.testing.assert_allclose(table.losses, expected.losses, atol=EXACT_NATS)


def test_a_broken_model_is_told_apart_from_a_misread_mask(tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark) -> None:
    with torch.no_grad():
        tiny_qwen2.lm_head.weight.fill_(torch.nan)
    table = score(tiny_qwen2, TextOnly(build_text_tokenizer()), mini_set, "t2t")
    assert np.isnan(table.losses).all()


def test_bfloat16_stays_within_its_tolerance(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark) -> None:
    exact = score(tiny_speech_lm, mini_adapter(), mini_set, "s2t")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = score(tiny_speech_lm, mini_adapter(), mini_set, "s2t")
    assert 0 < np.abs(rounded.losses - exact.losses).max() < 0.05


def test_logits_exist_at_answer_positions_alone(tiny_qwen2: Qwen2ForCausalLM, mini_set: Benchmark) -> None:
    seen = []
    tiny_qwen2.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[-2]))
    table = score(tiny_qwen2, TextOnly(build_text_tokenizer()), mini_set, "t2t", 10_000)
    # The first row is scored twice, packed and plainly, before it counts.
    assert sum(seen) == 3 * table.tokens.sum()


def test_the_audio_head_is_never_run(tiny_speech_lm: MiniSpeechLM, mini_set: Benchmark) -> None:
    for head in tiny_speech_lm.audio_head:
        head.register_forward_hook(lambda *_: pytest.fail("the audio head was run"))
    score(tiny_speech_lm, mini_adapter(), mini_set, "s2t")


def test_candidates_and_contexts_without_tokens_are_named(mini_set: Benchmark) -> None:
    class Mute:
        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
            return {"input_ids": [] if text.strip() == "..." else [1]}

    def refuse(audio: Audio) -> torch.Tensor:
        raise AssertionError("no recording is needed")

    faulty = Benchmark("mine", "en", (Item("q7", (Context("a"),) * 2, ("...", "b"), 0),))
    with pytest.raises(ValueError, match=r"item 'q7' of 'mine': the tokenizer makes no token of candidate 0 \('\.\.\.'\)"):
        encode(faulty, "t2t", TextOnly(Mute()), refuse)
    faulty = Benchmark("mine", "en", (Item("q8", (Context("..."),) * 2, ("a", "b"), 0),))
    with pytest.raises(ValueError, match="item 'q8' of 'mine': its context has no token"):
        encode(faulty, "t2t", TextOnly(Mute()), refuse)


def test_a_codebook_model_reads_text_without_speech(tiny_speech_lm: MiniSpeechLM) -> None:
    adapter: SummedCodebooks = mini_adapter()
    written = Benchmark("written", "zh", (Item("q", (Context("下雨了。"),) * 2, ("湿", "干"), 0),))
    assert np.isfinite(score(tiny_speech_lm, adapter, written, "t2t").losses).all()


def test_the_token_budget_follows_memory_and_model() -> None:
    gib = 2**30
    assert accelerator_tokens(60 * gib, hidden_size=3584, vocabulary=152_064) == 4_096
    assert accelerator_tokens(4 * gib, hidden_size=3584, vocabulary=152_064) == 1_024
    assert accelerator_tokens(4 * gib, hidden_size=576, vocabulary=49_152) == 4_096
    assert accelerator_tokens(0, hidden_size=3584, vocabulary=152_064) == 256
    assert LiveModel(nn.Linear(1, 1), nn.Linear(1, 1), CPU).token_budget() == 512


def test_the_check_looks_at_a_row_of_several_sequences(tiny_qwen2: Qwen2ForCausalLM) -> None:
    """Also where the longest question has contexts of its own for each candidate, and so a row to itself."""
    apart = Item("long", (Context("It rained all day. " * 9), Context("It snowed all day. " * 9)), ("He was wet.", "He was dry."), 0)
    short = [Item(str(n), (Context(f"It rained {n} days."),) * 2, ("He was wet.", "He was dry."), 0) for n in range(3)]
    adapter = BlindToMasks(build_text_tokenizer())
    questions = encode(Benchmark("mixed", "en", (apart, *short)), "t2t", adapter, lambda _: torch.zeros(0))
    scorer = Scorer(adapter, 60)
    with pytest.warns(UserWarning, match="the probe scores one row a candidate from now on"):
        scorer.score(LiveModel(tiny_qwen2, tiny_qwen2, CPU), questions)
    assert not scorer.packed
