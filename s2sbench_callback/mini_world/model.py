"""A speech LM of Baichuan-Audio's shape in small.

Audio tokens of several codebooks enter a decoder LM as the sum of their embeddings; a text head reads the next text token, an
audio head the next frame's codes. Parameters carry the names that Baichuan-Audio publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from s2sbench_callback.mini_world.speech_tokenizer import SpeechTokenizer


@dataclass
class SpeechLMOutput:
    """What the two heads say about the position after each position.

    Attributes:
        text_logits: ``[B, L, V]``.
        audio_logits: One ``[B, L, C_k]`` per codebook.
    """

    text_logits: Tensor
    audio_logits: list[Tensor]


class MiniSpeechLMConfig(Qwen2Config):
    """Qwen2's configuration and the sizes of the audio codebooks."""

    model_type = "mini_speech_lm"
    audio_codebook_sizes: tuple[int, ...] = (256, 128, 128, 128)


class MiniSpeechLM(Qwen2ForCausalLM):
    """Qwen2 with summed codebook embeddings, an audio head and its own speech tokenizer."""

    config_class = MiniSpeechLMConfig

    def __init__(self, config: MiniSpeechLMConfig) -> None:
        super().__init__(config)
        sizes = tuple(config.audio_codebook_sizes)
        self.model.audio_embed_layers = nn.ModuleList(nn.Embedding(size, config.hidden_size) for size in sizes)
        self.audio_head = nn.ModuleList(nn.Linear(config.hidden_size, size, bias=False) for size in sizes)
        self.audio_tokenizer = SpeechTokenizer(sizes).requires_grad_(False)
        for module in (*self.model.audio_embed_layers, *self.audio_head):
            nn.init.normal_(module.weight, std=config.initializer_range)

    def embed(self, streams: Tensor) -> Tensor:
        """Sum of text and audio embeddings.

        Args:
            streams: ``[B, L, 1 + K]``: a text id or -1, then the codes of one frame or -1.

        Returns:
            ``[B, L, H]``.
        """
        tables = [self.model.embed_tokens, *self.model.audio_embed_layers]
        parts = [table(ids.clamp_min(0)) * (ids >= 0).unsqueeze(-1) for table, ids in zip(tables, streams.unbind(-1), strict=True)]
        return torch.stack(parts).sum(0)

    def forward(self, streams: Tensor, **kwargs: Any) -> SpeechLMOutput:
        """Both heads at every position.

        Args:
            streams: ``[B, L, 1 + K]``: a text id or -1, then the codes of one frame or -1.
            **kwargs: Passed on to the Qwen2 body.
        """
        hidden = self.model(inputs_embeds=self.embed(streams), **kwargs).last_hidden_state
        return SpeechLMOutput(self.lm_head(hidden), [head(hidden) for head in self.audio_head])
