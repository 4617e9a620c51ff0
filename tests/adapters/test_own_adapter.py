"""The example of docs/adapters.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from contract import System, check_all, heard, spoken_set, text_logits
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from s2sbench_callback import S2SBenchCallback
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"


class UnitEncoder(nn.Module):
    """A unit for each 80 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Linear(1280, 24).requires_grad_(False)

    def forward(self, waveform: Tensor) -> Tensor:
        return self.scores(waveform[: len(waveform) // 1280 * 1280].view(-1, 1280)).argmax(-1)


class UserModule(pl.LightningModule):
    """What the page says the user has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unit_encoder = UnitEncoder()
        self.unit_embedding = nn.Embedding(24, 32)
        self.llm = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=len(build_text_tokenizer()),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=64,
            )
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.unit_embedding.weight.square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        return [0]


@pytest.fixture(scope="module")
def adapter_class() -> type:
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    namespace: dict[str, Any] = {"__name__": "own_adapter"}
    exec(compile(example, str(PAGE), "exec"), namespace)
    return namespace["UnitsBesideText"]


def test_the_contract(adapter_class: type, tmp_path: Path) -> None:
    check_all(lambda: System(UserModule().eval(), adapter_class(build_text_tokenizer()), ("s2t", "t2t")), tmp_path)


@torch.no_grad()
def test_the_native_logits(adapter_class: type, tmp_path: Path) -> None:
    module = UserModule().eval()
    system = System(module, adapter_class(build_text_tokenizer()), ("s2t", "t2t"))
    audio = spoken_set(tmp_path).items[0].contexts[0].audio
    assert audio is not None
    units, answer = heard(system)(audio), system.adapter.encode_text("He was wet.")
    embeddings = torch.cat([module.unit_embedding(units[:, 0]), module.llm.get_input_embeddings()(torch.tensor(answer))])
    torch.testing.assert_close(text_logits(system, [units], answer), module.llm(inputs_embeds=embeddings[None]).logits[0])


def test_it_is_probed_in_a_training(adapter_class: type, tmp_path: Path) -> None:
    probe = S2SBenchCallback(
        [spoken_set(tmp_path)], adapter_class(build_text_tokenizer()), locator=".", every_n_train_steps=1, dirpath=tmp_path / "record"
    )
    trainer = pl.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[probe])
    trainer.fit(UserModule())
    assert probe.record is not None
    assert [report.step for report in probe.record.history()] == [0, 1]
    assert "s2sbench/noise/degradation" in trainer.callback_metrics
