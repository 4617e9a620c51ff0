"""Next-token losses of the small speech LM on text and on audio tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from s2sbench_callback.mini_world.model import MiniSpeechLM


def next_token_losses(model: MiniSpeechLM, streams: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean losses over the positions that carry text and those that carry audio.

    Args:
        model: The model.
        streams: ``[B, L, 1 + K]``.
        weights: ``[B, L]`` weight of predicting each position.

    Returns:
        Text loss in nats per token, and audio loss in nats per code; 0 where the batch has none.
    """
    output = model(streams[:, :-1])
    targets, weights = streams[:, 1:], weights[:, 1:]
    is_text = (targets[..., 0] >= 0) & (weights > 0)
    is_audio = (targets[..., 1] >= 0) & (weights > 0)

    def mean_loss(logits: Tensor, stream: int, where: Tensor) -> Tensor:
        chosen = weights[where]
        losses = cross_entropy(logits[where].float(), targets[..., stream][where], reduction="none")
        return (losses * chosen).sum() / chosen.sum().clamp_min(1e-9)

    text = mean_loss(output.text_logits, 0, is_text)
    audio = torch.stack([mean_loss(logits, 1 + level, is_audio) for level, logits in enumerate(output.audio_logits)]).mean()
    return text, audio
