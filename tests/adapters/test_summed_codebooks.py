"""Baichuan-Audio's shape: one sequence, codebooks summed, linear heads or one that goes through the codebooks of a frame."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from baichuan_stand_in import CODEBOOKS, BaichuanStandIn
from contract import System, check_all, heard, losses, spoken_set, text_logits

from s2sbench_callback.adapters import SummedCodebooks
from s2sbench_callback.mini_world.model import MiniSpeechLM, MiniSpeechLMConfig
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer
from s2sbench_callback.prompts import Condition

ALL: tuple[Condition, ...] = ("s2t", "t2t", "s2s", "t2s")
VOCABULARY = len(build_text_tokenizer())
START, END = build_text_tokenizer().convert_tokens_to_ids([AUDIO_START, AUDIO_END])


def adapter(scored: Literal["semantic", "all"] = "semantic") -> SummedCodebooks:
    return SummedCodebooks(build_text_tokenizer(), AUDIO_START, AUDIO_END, scored=scored)


def embedded(scored: Literal["semantic", "all"] = "semantic") -> System:
    torch.manual_seed(0)
    config = MiniSpeechLMConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        audio_codebook_sizes=CODEBOOKS,
    )
    return System(MiniSpeechLM(config).eval(), adapter(scored), ALL)


def remote(scored: Literal["semantic", "all"] = "semantic") -> System:
    torch.manual_seed(0)
    return System(BaichuanStandIn(VOCABULARY).eval(), adapter(scored), ALL)


@pytest.mark.parametrize("scored", ["semantic", "all"])
@pytest.mark.parametrize("build", [embedded, remote])
def test_the_contract(build: partial[System], scored: Literal["semantic", "all"], tmp_path: Path) -> None:
    check_all(partial(build, scored), tmp_path)


def test_a_layout_written_by_hand() -> None:
    read = adapter("all")
    speech = torch.tensor([[1, 2], [3, 4]])
    assert read.context_streams([[5, 6], speech], "speech").tolist() == [
        [5, -1, -1],
        [6, -1, -1],
        [START, -1, -1],
        [-1, 1, 2],
        [-1, 3, 4],
        [END, -1, -1],
        [START, -1, -1],
    ]
    assert read.context_streams([[5]]).tolist() == [[5]]
    assert [part.tolist() for part in read.candidate_positions([7, 8])] == [[[7], [8]], [[7], [8]]]
    streams, targets = read.candidate_positions(speech)
    assert streams.tolist() == [[-1, 1, 2], [-1, 3, 4]]
    assert targets.tolist() == [[-1, 1, 2], [-1, 3, 4]]
    assert adapter().candidate_positions(speech).targets.tolist() == [[-1, 1], [-1, 3]]


@torch.no_grad()
def test_text_logits_of_the_published_class(tmp_path: Path) -> None:
    """Against its own way in: ids with pads whose embeddings are replaced."""
    system = remote()
    model = system.model
    audio = spoken_set(tmp_path).items[0].contexts[0].audio
    assert audio is not None
    codes = heard(system)(audio)
    before, answer = system.adapter.encode_text("Below "), system.adapter.encode_text("He was wet.")
    ids = torch.tensor([*before, START, *[0] * len(codes), END, *answer])
    embedded = model.model.embed_tokens(ids)
    first = len(before) + 1
    embedded[first : first + len(codes)] = sum(table(codes[:, k]) for k, table in enumerate(model.model.audio_embed_layers))
    expected = model.lm_head(model.model(embedded[None]).last_hidden_state[0])
    torch.testing.assert_close(text_logits(system, [before, codes], answer), expected)
    # The same beside padding.
    padded = torch.cat([embedded, torch.zeros(5, embedded.shape[1])])
    torch.testing.assert_close(model.lm_head(model.model(padded[None]).last_hidden_state[0])[: len(ids)], expected)


@pytest.mark.parametrize("scored", ["semantic", "all"])
@pytest.mark.parametrize("build", [embedded, remote])
@torch.no_grad()
def test_spoken_candidates_against_a_slow_computation(build: partial[System], scored: Literal["semantic", "all"], tmp_path: Path) -> None:
    """Frame by frame and codebook by codebook, each from a forward over everything before it."""
    system = build(scored)
    model, hear = system.model, heard(system)
    benchmark = spoken_set(tmp_path, questions=2)
    table = losses(system, benchmark, "s2s")
    tables = model.model.audio_embed_layers

    def embed(codes: torch.Tensor) -> torch.Tensor:
        return torch.stack([each(codes[:, k]) for k, each in enumerate(tables)]).sum(0)

    def bracket(token: int) -> torch.Tensor:
        return model.model.embed_tokens(torch.tensor([token]))

    for question, item in enumerate(benchmark.items):
        assert item.contexts[0].audio is not None
        context = torch.cat([bracket(START), embed(hear(item.contexts[0].audio)), bracket(END), bracket(START)])
        for candidate, audio in enumerate(item.candidate_audios):
            codes = hear(audio)
            nats, count = 0.0, 0
            for frame in range(len(codes)):
                sequence = torch.cat([context, embed(codes[:frame])])
                state = model.model(inputs_embeds=sequence[None]).last_hidden_state[0, -1:]
                for k in range(len(CODEBOOKS) if scored == "all" else 1):
                    if isinstance(model, MiniSpeechLM):
                        logits = model.audio_head[k](state)
                    else:
                        given = torch.zeros(1, len(CODEBOOKS), dtype=torch.long)
                        given[0, :k] = codes[frame, :k]
                        logits = model.audio_head(state, given, tables)[k]
                    nats -= float(logits[0].double().log_softmax(-1)[codes[frame, k]])
                    count += 1
            assert table.tokens[question, candidate] == count
            np.testing.assert_allclose(table.nats[question, candidate] / count, nats / count, atol=1e-5)


def test_a_missing_bracket_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no token '<audio_start_baichuan>'; name the model's own in audio_start="):
        SummedCodebooks(build_text_tokenizer())
