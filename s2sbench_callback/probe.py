"""One probe: every question, in every condition, on the model as it is now."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from s2sbench_callback.adapters.protocol import Adapter
from s2sbench_callback.items import Audio, Benchmark
from s2sbench_callback.metrics import refuse_if_mostly_invalid
from s2sbench_callback.prompts import CONDITIONS, PROMPT_VERSION, Condition
from s2sbench_callback.scoring import LossTable, Questions, Scorer, encode
from s2sbench_callback.speech import AudioTokenCache, load_waveform

_CPU_TOKENS, _ACCELERATOR_TOKENS = 512, 4096


class Probe:
    """Asks benchmarks of a live model, and keeps between probes what does not change.

    Args:
        benchmarks: The sets, with different names.
        conditions: How contexts are given.
        max_questions: Questions per set; a larger set is cut to a fixed subset.
        max_tokens: Positions in one forward; chosen for the device by default.

    Raises:
        ValueError: If two sets have the same name, or an argument is out of range.
    """

    def __init__(
        self,
        benchmarks: Sequence[Benchmark],
        conditions: Sequence[Condition] = CONDITIONS,
        max_questions: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        if not benchmarks:
            raise ValueError("benchmarks is empty: name at least one set, for example official('eval_s2t.yaml', name='sStory_s2t')")
        names = [benchmark.name for benchmark in benchmarks]
        if len(set(names)) != len(names):
            raise ValueError(f"two benchmarks have the same name, and so the same metric keys: {names}; rename one with set_name=")
        unknown = [condition for condition in conditions if condition not in CONDITIONS]
        if unknown or not conditions or len(set(conditions)) != len(conditions):
            raise ValueError(f"conditions must be some of {list(CONDITIONS)}, each once, got {list(conditions)}")
        if max_questions is not None and max_questions < 1:
            raise ValueError(f"max_questions must be at least 1, got {max_questions}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        self.benchmarks = {benchmark.name: _subset(benchmark, max_questions) for benchmark in benchmarks}
        self.conditions = tuple(condition for condition in CONDITIONS if condition in conditions)
        self.max_tokens = max_tokens
        self._scorer: Scorer | None = None
        self._audio_tokens = AudioTokenCache()
        self._questions: tuple[tuple[str, ...], list[Questions]] | None = None

    def asked(self, adapter: Adapter) -> list[tuple[Benchmark, Condition]]:
        """Sets and conditions that can be asked; says which cannot, and why.

        Raises:
            ValueError: If none can.
        """
        refusals = []
        asked = []
        for benchmark in self.benchmarks.values():
            for condition in self.conditions:
                reason = adapter.refusal(condition)
                if reason is None and condition == "s2t" and not all(item.has_audio for item in benchmark.items):
                    reason = "the set has no recordings"
                if reason is None:
                    asked.append((benchmark, condition))
                else:
                    refusals.append(f"{benchmark.name}/{condition}: {reason}")
        if not asked:
            raise ValueError(f"nothing can be asked of this model: {'; '.join(refusals)}")
        if refusals:
            warnings.warn(f"the probe leaves out {'; '.join(refusals)}", stacklevel=2)
        return asked

    def run(self, adapter: Adapter, model: nn.Module, device: torch.device, progress: bool = False) -> dict[str, dict[Condition, LossTable]]:
        """Scores everything that can be asked.

        Call it inside :func:`s2sbench_callback.isolation.isolated`.

        Args:
            adapter: How the model is fed and read.
            model: The live language model.
            device: Where it is.
            progress: Whether to show a bar.

        Returns:
            Losses by set and condition.

        Raises:
            FloatingPointError: If half of a set's questions have a loss that is not finite.
        """
        questions = self._encoded(adapter, model, device, progress)
        if self._scorer is None or self._scorer.adapter is not adapter:
            tokens = self.max_tokens or (_CPU_TOKENS if device.type == "cpu" else _ACCELERATOR_TOKENS)
            self._scorer = Scorer(adapter, tokens)
        tables: dict[str, dict[Condition, LossTable]] = {}
        total = sum(len(unit.candidates) for asked in questions for unit in asked.units)
        with tqdm(total=total, desc="S2SBench probe", unit="candidate", leave=False, disable=not progress) as bar:
            for asked in questions:
                table = self._scorer.score(model, asked, device, bar.update)
                refuse_if_mostly_invalid(table, f"{asked.benchmark.name}/{asked.condition}")
                tables.setdefault(asked.benchmark.name, {})[asked.condition] = table
        return tables

    def signature(self, adapter: Adapter) -> dict[str, Any]:
        """Everything about the questions and their scoring that can change a figure."""
        return {
            "prompt": PROMPT_VERSION,
            "normalisation": "per_token",
            "scoring": "packed" if self._scorer is None or self._scorer.packed else "plain",
            "adapter": dict(adapter.signature()),
            "sets": {
                name: {
                    "fingerprint": benchmark.fingerprint,
                    "questions": len(benchmark.items),
                    "language": benchmark.language,
                    "tie_rule": benchmark.tie_rule,
                }
                for name, benchmark in self.benchmarks.items()
            },
        }

    def _encoded(self, adapter: Adapter, model: nn.Module, device: torch.device, progress: bool) -> list[Questions]:
        """Questions ready to be scored, made again only when the speech tokenizer has changed."""
        hears = any(adapter.refusal(condition) is None and condition == "s2t" for condition in self.conditions)
        fingerprint = adapter.audio_fingerprint(model) if hears else ""
        key = (str(id(adapter)), fingerprint)
        if self._questions and self._questions[0] == key:
            return self._questions[1]
        asked = self.asked(adapter)
        with tqdm(total=sum(_recordings(asked)), desc="S2SBench speech", unit="recording", leave=False, disable=not progress) as bar:

            def audio_tokens(audio: Audio) -> Tensor:
                def compute() -> Tensor:
                    bar.update()
                    return adapter.encode_audio(model, load_waveform(audio, adapter.sample_rate).to(device))

                return self._audio_tokens.get(audio, fingerprint, compute)

            questions = [encode(benchmark, condition, adapter, audio_tokens) for benchmark, condition in asked]
        self._questions = (key, questions)
        return questions


def _recordings(asked: Sequence[tuple[Benchmark, Condition]]) -> Iterator[int]:
    for benchmark, condition in asked:
        if condition == "s2t":
            yield len({context.audio.digest for item in benchmark.items for context in item.contexts if context.audio})


def _subset(benchmark: Benchmark, max_questions: int | None) -> Benchmark:
    if max_questions is None or max_questions >= len(benchmark.items):
        return benchmark
    chosen = sorted(random.Random(0).sample(range(len(benchmark.items)), max_questions))
    return replace(benchmark, items=tuple(benchmark.items[index] for index in chosen))


def table_to_state(table: LossTable) -> dict[str, Any]:
    """A table as plain data that ``torch.load(weights_only=True)`` accepts."""
    return {
        "item_ids": list(table.item_ids),
        "groups": list(table.groups),
        **{name: torch.from_numpy(getattr(table, name).copy()) for name in ("answers", "nats", "tokens")},
    }


def table_from_state(state: Mapping[str, Any]) -> LossTable:
    """The table that :func:`table_to_state` made."""
    arrays = {name: cast(Tensor, state[name]).cpu().numpy() for name in ("answers", "nats", "tokens")}
    return LossTable(tuple(state["item_ids"]), tuple(state["groups"]), **arrays)
