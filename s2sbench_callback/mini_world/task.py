"""The small speech LM as a LightningModule: what a user's own training looks like to the callbacks."""

from __future__ import annotations

import math
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from s2sbench_callback.adapters import Adapter
from s2sbench_callback.cache import cache_folder
from s2sbench_callback.mini_world.losses import next_token_losses
from s2sbench_callback.mini_world.pretraining import Pretraining, build_model, load_pretrained, mini_adapter, pretrained_weights


class MiniTask(pl.LightningModule):
    """Trains the small speech LM on speech and text.

    All rates fall along a cosine over the second half of the run. Where they rise from 0 is for the stages to say.

    Args:
        pretraining: How the text LLM that the training starts from is made.
        audio_learning_rate: Highest rate of audio embedding and audio head.
        lm_learning_rate: Highest rate of everything else.
        audio_loss_weight: Weight of the loss on audio tokens against that on text.
        cache_dir: Where speech and text LLM are kept; by default the user's cache folder.
    """

    def __init__(
        self,
        pretraining: Pretraining = Pretraining(),  # noqa: B008  # frozen
        audio_learning_rate: float = 5e-3,
        lm_learning_rate: float = 1e-3,
        audio_loss_weight: float = 0.15,
        cache_dir: str | Path | None = None,
    ) -> None:
        super().__init__()
        self.pretraining = pretraining
        self.audio_learning_rate = audio_learning_rate
        self.lm_learning_rate = lm_learning_rate
        self.audio_loss_weight = audio_loss_weight
        self.cache_folder = cache_folder(cache_dir)
        self.model = build_model(pretraining)

    def s2sbench_adapter(self) -> Adapter:
        """How the probe reads the model."""
        return mini_adapter()

    def prepare_data(self) -> None:
        """Makes the text LLM, once."""
        pretrained_weights(self.pretraining, self.cache_folder)

    def setup(self, stage: str) -> None:
        """Starts from the text LLM."""
        if stage == "fit":
            load_pretrained(self.model, pretrained_weights(self.pretraining, self.cache_folder))

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Text loss plus weighted audio loss."""
        text, audio = next_token_losses(self.model, batch["streams"], batch["weights"])
        self.log_dict({"train/text_loss": text, "train/audio_loss": audio})
        return text + self.audio_loss_weight * audio

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """AdamW over two groups, and the cosine."""
        audio: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for name, parameter in self.model.named_parameters():
            (audio if name.startswith(("model.audio_embed_layers.", "audio_head.")) else rest).append(parameter)
        groups = [{"params": audio, "lr": self.audio_learning_rate}, {"params": rest, "lr": self.lm_learning_rate}]
        optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._fall), "interval": "step"}}

    def _fall(self, step: int) -> float:
        planned = self.trainer.max_steps
        done = step / planned if planned > 0 else 0.0
        return 0.525 + 0.475 * math.cos(math.pi * min(1.0, max(0.0, 2 * done - 1)))
