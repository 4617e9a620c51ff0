"""What every adapter must do, checked on a tiny model of its own; each family's tests call these."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from s2sbench_callback import Benchmark, Item, S2SBenchCallback, StageUnfreeze, two_stage
from s2sbench_callback.adapters import Adapter, Row, Rows
from s2sbench_callback.items import Audio, Context, recording_digest
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.parameter_names import named_parameters
from s2sbench_callback.prompts import CANDIDATES, Condition
from s2sbench_callback.scoring import LossTable, Scorer, encode
from s2sbench_callback.speech import load_waveform

CPU = torch.device("cpu")
EXACT_NATS = 2e-5


@dataclass(frozen=True)
class System:
    """A tiny model with random weights, in evaluation mode, and the adapter that reads it.

    Attributes:
        model: The model.
        adapter: The adapter.
        conditions: What can be asked of it; all others must be refused.
    """

    model: nn.Module
    adapter: Adapter
    conditions: tuple[Condition, ...]


def spoken_set(folder: Path, questions: int = 3, seconds: float = 1.0, seed: int = 0) -> Benchmark:
    """Questions with recordings of contexts, candidates and whole stories: noise of different lengths, at 16 kHz."""
    draw = np.random.default_rng(seed)

    def recording(name: str, length: float) -> Audio:
        path = folder / f"{name}.wav"
        samples = draw.normal(0, 0.1, int(16_000 * length))
        soundfile.write(path, samples, 16_000)
        return Audio(path, recording_digest(path.read_bytes()), length)

    texts = ["It rained all day.", "The cat sat on the mat.", "He lost his keys.", "She won the race."]
    endings = [("He was wet.", "He was very dry indeed."), ("It slept.", "It flew to the moon."), ("He found them.", "He ate.")]
    items = []
    for number in range(questions):
        heard = recording(f"context_{number}", seconds * (1 + 0.3 * number))
        candidates = endings[number % len(endings)]
        items.append(
            Item(
                str(number),
                (Context(texts[number % len(texts)], heard),) * 2,
                candidates,
                number % 2,
                candidate_audios=tuple(recording(f"{number}_{index}", seconds * (0.6 + 0.2 * index)) for index in range(2)),
                story_audios=tuple(recording(f"story_{number}_{index}", seconds * (1.2 + 0.2 * index)) for index in range(2)),
            )
        )
    return Benchmark("noise", "en", tuple(items))


def heard(system: System) -> Callable[[Audio], Tensor]:
    """Recordings to what the model's front-end makes of them."""

    def encode_audio(audio: Audio) -> Tensor:
        with torch.no_grad():
            return system.adapter.encode_audio(system.model, load_waveform(audio, system.adapter.sample_rate)).cpu()

    return encode_audio


def losses(system: System, benchmark: Benchmark, condition: Condition, packed: bool = True, max_tokens: int = 512) -> LossTable:
    """The engine's table; any fallback from packed rows is an error here."""
    questions = encode(benchmark, condition, system.adapter, heard(system))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        return Scorer(system.adapter, max_tokens, packed).score(LiveModel(system.model, system.model, CPU), questions)


def plain_row(streams: Tensor, features: Tensor | None = None, sources: Sequence[int] | None = None) -> Row:
    """One sequence, asked for text logits at every position or at some."""
    places = torch.arange(len(streams))
    asked = places if sources is None else torch.tensor(sources)
    return Row(streams, places, None, asked, torch.zeros_like(asked), torch.zeros_like(asked), features)


@torch.no_grad()
def text_logits(system: System, parts: Sequence[list[int] | Tensor], candidate: list[int]) -> Tensor:
    """``[L, V]`` text logits of the adapter at every position of one sequence: context ``parts`` as ids or as encoded audio, then the candidate."""
    context = system.adapter.context_streams(parts)
    streams = system.adapter.candidate_positions(candidate).streams
    width = max(context.shape[1], streams.shape[1])
    whole = torch.cat([nn.functional.pad(piece, (0, width - piece.shape[1]), value=-1) for piece in (context, streams)])
    features = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    return system.adapter.logits(system.model, plain_row(whole, torch.cat(features) if features else None))


def check_protocol(system: System) -> None:
    """It is an adapter, refuses exactly what it cannot do, by a sentence, and signs with words."""
    assert isinstance(system.adapter, Adapter)
    for condition in CANDIDATES:
        reason = system.adapter.refusal(condition)
        assert (reason is None) is (condition in system.conditions), (condition, reason)
    signature = system.adapter.signature()
    assert signature["adapter"]
    assert all(isinstance(value, str) for pair in signature.items() for value in pair)


def check_packed_equals_plain(system: System, benchmark: Benchmark) -> None:
    """In every condition, in rows of every size."""
    for condition in system.conditions:
        plain = losses(system, benchmark, condition, packed=False)
        assert np.isfinite(plain.losses).all()
        for max_tokens in (1, 120, 4096):
            packed = losses(system, benchmark, condition, max_tokens=max_tokens)
            np.testing.assert_array_equal(packed.tokens, plain.tokens)
            np.testing.assert_allclose(packed.losses, plain.losses, atol=EXACT_NATS)


def check_candidates_leave_the_context_alone(system: System, benchmark: Benchmark) -> None:
    """Text logits over the context are the same whatever follows."""
    hear = heard(system)
    context = benchmark.items[0].contexts[0]
    for condition in ("s2t", "t2t"):
        if condition not in system.conditions:
            continue
        assert context.audio is not None
        parts = [hear(context.audio)] if condition == "s2t" else [system.adapter.encode_text(context.text)]
        length = len(system.adapter.context_streams(parts))
        one, other = (text_logits(system, parts, system.adapter.encode_text(text))[:length] for text in ("He was wet.", "Nobody knows."))
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def check_speech_is_heard(system: System, benchmark: Benchmark) -> None:
    """Another recording changes the score where the context is spoken, and only there."""
    first, second = benchmark.items[0], benchmark.items[1]
    swapped = replace(first, contexts=tuple(replace(c, audio=second.contexts[0].audio) for c in first.contexts))
    changed = replace(benchmark, items=(swapped, *benchmark.items[1:]))
    for condition in system.conditions:
        before, after = (losses(system, each, condition, packed=False) for each in (benchmark, changed))
        same = np.allclose(before.losses[0], after.losses[0], atol=1e-7)
        assert same is (condition in ("t2t", "t2s")), condition
        np.testing.assert_allclose(before.losses[1:], after.losses[1:], atol=EXACT_NATS)


def check_roles(system: System) -> None:
    """Every parameter, or every row of it, has exactly one role; a tied one may stand under several of its names."""
    roles = system.adapter.roles(system.model)
    entries = [entry for of_role in roles.values() for entry in of_role]
    names: dict[int, list[str]] = {}
    parameters = named_parameters(system.model)
    for name, parameter in parameters.items():
        names.setdefault(id(parameter), []).append(name)
    for aliases in names.values():
        parameter = parameters[aliases[0]]
        rows = np.zeros(parameter.shape[0] if parameter.dim() else 1, dtype=int)
        prefixes: set[str] = set()
        for entry in entries:
            if isinstance(entry, Rows):
                if entry.parameter in aliases:
                    assert 0 <= entry.start < entry.stop <= len(rows), entry
                    rows[entry.start : entry.stop] += 1
            elif any(name.startswith(entry) for name in aliases):
                prefixes.add(entry)
        if prefixes and rows.any():
            raise AssertionError(f"{aliases} has rows and whole roles: {prefixes}")
        if prefixes:
            assert len(prefixes) == 1 or len(aliases) > 1, (aliases, prefixes)
        else:
            assert (rows == 1).all(), (aliases, "rows with no role or several")
    for entry in entries:
        if isinstance(entry, Rows):
            assert entry.parameter in parameters, entry
        else:
            assert any(name.startswith(entry) for name in system.model.state_dict()), f"{entry!r} matches nothing"


class Holder(pl.LightningModule):
    """A user's module around the model; what it trains is of no account."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return torch.stack([parameter.square().mean() for parameter in self.parameters() if parameter.requires_grad]).sum() + torch.rand(())

    def train_dataloader(self) -> list[int]:
        return [0, 1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def check_training_is_untouched(build: Callable[[], System], benchmark: Benchmark, folder: Path) -> None:
    """Two steps in the paper's two stages, with a probe at each: weights, buffers and whatever else the modules hold are those of a run without."""
    states = []
    for probed in (True, False):
        system = build()
        callbacks: list[pl.Callback] = []
        probe = S2SBenchCallback(
            [benchmark],
            system.adapter,
            locator="model",
            conditions=list(system.conditions),
            every_n_train_steps=1 if probed else 100,
            at_start=probed,
            at_end=False,
            packed=False,
            cache_dir=folder / "cache",
            dirpath=folder / f"record {probed}",
        )
        callbacks += [probe, StageUnfreeze(two_stage(first_steps=1))]
        pl.seed_everything(0, verbose=False)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pl.Trainer(accelerator="cpu", max_steps=2, callbacks=callbacks, **quiet).fit(Holder(system.model))
        states.append(_state(system.model))
        if probed:
            assert probe.record is not None
            assert [report.step for report in probe.record.history()] == [0, 1, 2]
    with_probe, without = states
    # Tables that a front-end makes when it first hears something are nothing that training would not make too.
    system = build()
    front_end = tuple(str(entry) for entry in system.adapter.roles(system.model).get("frontend", ()))
    for name in with_probe.keys() | without.keys():
        value, other = with_probe.get(name), without.get(name)
        same = torch.equal(value, other) if isinstance(value, Tensor) and isinstance(other, Tensor) else value is other or value == other
        assert same or (other is None and name.startswith(front_end)), f"{name} is not what it is without the probe"


def _state(model: nn.Module) -> dict[str, object]:
    """Weights, buffers, hooks and plain attributes of every module."""
    state: dict[str, object] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor | int | float | None):
                state[f"{path}.:{name}"] = value
        state[f"{path}.:hooks"] = (len(module._forward_hooks), len(module._forward_pre_hooks))
    return state


def check_checkpoint(system: System, build: Callable[[], System], benchmark: Benchmark, folder: Path) -> None:
    """Losses survive a Lightning checkpoint into a model that began with other weights."""
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.strategy.connect(Holder(system.model))
    path = folder / "model.ckpt"
    trainer.save_checkpoint(path)
    other = build()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(0.1)
    holder = Holder(other.model)
    holder.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    for condition in system.conditions:
        expected = losses(system, benchmark, condition)
        np.testing.assert_allclose(losses(other, benchmark, condition).losses, expected.losses, atol=1e-6)


def check_all(build: Callable[[], System], folder: Path) -> None:
    """Everything above.

    Args:
        build: Makes the system; the same weights each time.
        folder: For recordings and the checkpoint.
    """
    system = build()
    benchmark = spoken_set(folder)
    check_protocol(system)
    check_packed_equals_plain(system, benchmark)
    check_candidates_leave_the_context_alone(system, benchmark)
    check_speech_is_heard(system, benchmark)
    check_roles(system)
    check_checkpoint(system, build, benchmark, folder)
    roles = system.adapter.roles(system.model)
    if roles.get("audio_embedding") and roles.get("lm_body"):
        check_training_is_untouched(build, benchmark, folder)
