from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from conftest import TINY
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from s2sbench_callback import Stage, StageUnfreeze, single_stage, two_stage
from s2sbench_callback.mini_world.data import MiniData
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.task import MiniTask
from s2sbench_callback.stages import set_trainable

AUDIO = ("model.audio_embed_layers.", "audio_head.")
BODY = ("model.layers.", "model.norm.")


def learning(model: MiniSpeechLM) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_the_papers_stages(tiny_speech_lm: MiniSpeechLM) -> None:
    first, second = two_stage(first_steps=5)
    set_trainable(tiny_speech_lm, mini_adapter(), first.train)
    assert learning(tiny_speech_lm)
    assert all(name.startswith(AUDIO) for name in learning(tiny_speech_lm))
    set_trainable(tiny_speech_lm, mini_adapter(), second.train)
    assert {name for name, _ in tiny_speech_lm.named_parameters()} - learning(tiny_speech_lm) == {"model.embed_tokens.weight", "lm_head.weight"}
    learns, total = set_trainable(tiny_speech_lm, mini_adapter(), single_stage()[0].train)
    assert learns == total == sum(parameter.numel() for parameter in tiny_speech_lm.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage("s", ("lm_brain",)), "stage 's': unknown role.*lm_brain.*the roles are audio_embedding"),  # type: ignore[arg-type]
        (lambda: Stage("s", ("lm_body",), steps=0), "steps must be at least 1, got 0"),
        (lambda: StageUnfreeze([]), "needs at least one stage"),
        (lambda: StageUnfreeze([Stage("a", ("lm_body",)), Stage("b", ("lm_head",))]), "stage 'a' is not the last, so it needs a length"),
    ],
)
def test_bad_settings(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_role_without_parameters_is_named(tiny_speech_lm: MiniSpeechLM) -> None:
    with pytest.raises(ValueError, match="the role 'frontend' has no parameters in MiniSpeechLM"):
        set_trainable(tiny_speech_lm, mini_adapter(), ["frontend"])


class Watch(pl.Callback):
    """Which parts moved in which step."""

    def __init__(self) -> None:
        self.moved: list[set[str]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: object, batch_idx: int) -> None:
        self.before = {name: p.detach().clone() for name, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: object, batch: object, batch_idx: int) -> None:
        moved = {name.removeprefix("model.") for name, p in pl_module.named_parameters() if not torch.equal(p, self.before[name])}
        self.moved.append(moved)


def fit(tmp_path: Path, *callbacks: pl.Callback, ckpt_path: str | None = None, **arguments: object) -> pl.Trainer:
    pl.seed_everything(1)
    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=list(callbacks),
        **arguments,  # type: ignore[arg-type]
    )
    trainer.fit(MiniTask(TINY), MiniData(batch_size=2, pretraining=TINY), ckpt_path=ckpt_path)
    return trainer


def test_only_the_stages_roles_move_and_the_switch_is_on_time(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    fit(tmp_path, watch, StageUnfreeze(two_stage(first_steps=2)), max_steps=4)
    for moved in watch.moved[:2]:
        assert moved
        assert all(name.startswith(AUDIO) for name in moved)
    for moved in watch.moved[2:]:
        assert any(name.startswith(BODY) for name in moved)
        assert all(name.startswith(AUDIO + BODY) for name in moved)


def test_under_accumulation_the_switch_waits_for_the_step(tmp_path: Path, cache_dir: Path) -> None:
    watch = Watch()
    fit(tmp_path, watch, StageUnfreeze(two_stage(first_steps=1)), max_steps=2, accumulate_grad_batches=2)
    assert [any(name.startswith(BODY) for name in moved) for moved in watch.moved] == [False, False, False, True]


def test_a_resumed_run_goes_on_in_its_stage(tmp_path: Path, cache_dir: Path) -> None:
    fit(tmp_path, StageUnfreeze(two_stage(first_steps=2)), max_steps=3).save_checkpoint(tmp_path / "three.ckpt")
    watch, stages = Watch(), StageUnfreeze(two_stage(first_steps=2))
    fit(tmp_path, watch, stages, max_steps=4, ckpt_path=str(tmp_path / "three.ckpt"))
    assert stages.stage_number == 2
    assert len(watch.moved) == 1
    assert any(name.startswith(BODY) for name in watch.moved[0])


def test_parameters_that_no_optimizer_has_are_an_error_not_silence(tmp_path: Path, cache_dir: Path) -> None:
    class Filtered(MiniTask):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW([parameter for parameter in self.parameters() if parameter.requires_grad])

        def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
            pass

    trainer = pl.Trainer(
        default_root_dir=tmp_path,
        accelerator="cpu",
        max_steps=2,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        callbacks=StageUnfreeze(two_stage(1)),
    )
    with pytest.raises(MisconfigurationException, match=r"stage .language model too. trains .* more parameter.* that no optimizer has"):
        trainer.fit(Filtered(TINY), MiniData(batch_size=2, pretraining=TINY))


def test_tied_matrices_learn_together_or_not_at_all(tiny_speech_lm: MiniSpeechLM) -> None:
    tiny_speech_lm.lm_head.weight = tiny_speech_lm.model.embed_tokens.weight
    learns, total = set_trainable(tiny_speech_lm, mini_adapter(), single_stage()[0].train)
    assert learns == total
    with pytest.raises(ValueError, match="are one tied matrix; a stage must train both or neither"):
        set_trainable(tiny_speech_lm, mini_adapter(), ["lm_head"])
    set_trainable(tiny_speech_lm, mini_adapter(), ["lm_body"])
    assert not tiny_speech_lm.lm_head.weight.requires_grad
