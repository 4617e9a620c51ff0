"""Baichuan-Audio's shape: packed in one sequence, codebooks summed, linear heads or a transformer over the codebooks."""

from __future__ import annotations

from pathlib import Path

import torch
from contract import System, check_all

from s2sbench_callback.mini_world.model import MiniSpeechLM, MiniSpeechLMConfig
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer


def mini_system() -> System:
    torch.manual_seed(0)
    config = MiniSpeechLMConfig(
        vocab_size=len(build_text_tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
        audio_codebook_sizes=(16, 8, 8),
    )
    return System(MiniSpeechLM(config).eval(), mini_adapter(), ("s2t", "t2t", "s2s", "t2s"))


def test_the_embedded_speech_lm_keeps_the_contract(tmp_path: Path) -> None:
    check_all(mini_system, tmp_path)
