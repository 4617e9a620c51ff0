"""One probe: every question, in every condition, on the model as it is now."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from s2sbench_callback.adapters.protocol import Adapter
from s2sbench_callback.cache import cache_folder
from s2sbench_callback.controls import Control, controlled
from s2sbench_callback.items import Audio, Benchmark, Item
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.metrics import refuse_if_mostly_invalid
from s2sbench_callback.parameter_names import named_parameters
from s2sbench_callback.prompts import CANDIDATES, CONDITIONS, DEFAULT_CONDITIONS, PROMPT_VERSION, Condition, lacks, prompt
from s2sbench_callback.ranks import Ranks, end_the_job, share
from s2sbench_callback.scoring import LossTable, Questions, Scorer, encode
from s2sbench_callback.speech import AudioTokenCache, load_waveform
from s2sbench_callback.voices import written

_READERS, _READ_AHEAD = 8, 64
# Of a typical speech LM; they only balance the ranks.
_FRAMES_PER_SECOND, _CHARACTERS_PER_TOKEN = 12.5, 3.0


class Probe:
    """Asks benchmarks of a live model, and keeps between probes what does not change.

    Args:
        benchmarks: The sets, with different names.
        conditions: How contexts are given.
        max_questions: Questions per set; a larger set is cut to a fixed subset.
        max_tokens: Positions in one forward; chosen for the device by default.
        cache_dir: Where audio tokens are kept between runs; by default the user's cache folder.
        packed: Whether candidates share the computation of their context.

    Attributes:
        front_end_forwards: How often the model's front-end was run on this rank so far, for another rank's sake included.

    Raises:
        ValueError: If two sets have the same name, or an argument is out of range.
    """

    def __init__(
        self,
        benchmarks: Sequence[Benchmark],
        conditions: Sequence[Condition] = DEFAULT_CONDITIONS,
        max_questions: int | None = None,
        max_tokens: int | None = None,
        cache_dir: str | Path | None = None,
        packed: bool = True,
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
        self.packed = packed
        self._scorer: Scorer | None = None
        self._said_what_is_left_out = False
        self.front_end_forwards = 0
        self._cache_dir = cache_dir
        self._audio_tokens = AudioTokenCache(cache_folder(cache_dir) / "audio-tokens")
        self._questions: tuple[tuple[str, ...], list[Questions]] | None = None
        self._read_alike: dict[str, str] = {}

    def of_controls(self, controls: Sequence[Control]) -> Probe:
        """A probe of the same questions, changed as controls; of written candidates alone.

        Args:
            controls: How the sets are changed, one after the other.

        Raises:
            ValueError: If a control is unknown or named twice, no condition has written candidates, or a set has too few questions.
        """
        conditions = [condition for condition in self.conditions if CANDIDATES[condition] == "text"]
        if not conditions:
            raise ValueError(f"controls need s2t or t2t among the conditions, got {list(self.conditions)}")
        changed = [controlled(benchmark, control) for benchmark in self.benchmarks.values() for control in controls]
        return Probe(changed, conditions, None, self.max_tokens, self._cache_dir, self.packed)

    def start_anew(self) -> None:
        """Forgets what was found out about a model and its ranks; audio tokens stay."""
        self._scorer = None
        self._questions = None

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
                if reason is None and (missing := lacks(benchmark, condition)):
                    reason = f"the set has {missing}"
                if reason is None:
                    asked.append((benchmark, condition))
                else:
                    refusals.append(f"{benchmark.name}/{condition}: {reason}")
        if not asked:
            raise ValueError(f"nothing can be asked of this model: {'; '.join(refusals)}")
        if refusals and not self._said_what_is_left_out:
            self._said_what_is_left_out = True
            warnings.warn(f"the probe leaves out {'; '.join(refusals)}", stacklevel=2)
        return asked

    def run(self, adapter: Adapter, live: LiveModel, ranks: Ranks, progress: bool = False) -> dict[str, dict[Condition, LossTable]]:
        """Scores everything that can be asked; called by all ranks together.

        Call it inside :func:`s2sbench_callback.isolation.isolated`.

        Args:
            adapter: How the model is fed and read.
            live: The live language model.
            ranks: Who else scores.
            progress: Whether to show a bar.

        Returns:
            Losses by set and condition, the same on every rank.

        Raises:
            ProbeError: On all ranks, if one of several failed.
            FloatingPointError: If half of a set's questions have a loss that is not finite.
        """
        questions = self.prepare(adapter, live, ranks, progress)
        if self._scorer is None or self._scorer.adapter is not adapter:
            self._scorer = Scorer(adapter, self.max_tokens or ranks.minimum(live.token_budget()), self.packed)
        tables: dict[str, dict[Condition, LossTable]] = {}
        total = sum(asked.candidates for asked in questions)
        with tqdm(total=total, desc="S2SBench probe", unit="candidate", leave=False, disable=not progress) as bar:
            for asked in questions:
                table = self._scorer.score(live, asked, ranks, bar.update)
                refuse_if_mostly_invalid(table, f"{asked.benchmark.name}/{asked.condition}")
                tables.setdefault(asked.benchmark.name, {})[asked.condition] = table
        for name, twin in self._read_alike.items():
            tables.setdefault(name, {})["t2t"] = tables[twin]["t2t"]
        return {name: {condition: of_set[condition] for condition in CONDITIONS if condition in of_set} for name, of_set in tables.items()}

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

    def prepare(self, adapter: Adapter, live: LiveModel, ranks: Ranks, progress: bool = False) -> list[Questions]:
        """This rank's questions, ready to be scored on all ranks or on none; made again only when the speech tokenizer has changed.

        Args:
            adapter: How the model is fed and read.
            live: The live language model.
            ranks: Who else prepares.
            progress: Whether to show a bar.

        Raises:
            ProbeError: On all ranks, if one of several failed.
        """
        asked = self._each_text_once(ranks.together(lambda: self.asked(adapter), "while asking the adapter"))
        heard = [(benchmark, condition) for benchmark, condition in asked if condition != "t2t"]
        fingerprint = ranks.together(lambda: _audio_fingerprint(adapter, live.model) if heard else "", "while hashing the front-end")
        key = (str(id(adapter)), fingerprint)
        # One decision for all ranks: front-ends may differ between them, in running statistics for example.
        if not ranks.maximum(int(self._questions is None or self._questions[0] != key)):
            assert self._questions is not None
            return self._questions[1]
        # Both conditions of a question and all its candidates on one rank.
        shares = {name: share([_cost(item) for item in benchmark.items], ranks.size)[ranks.rank] for name, benchmark in self.benchmarks.items()}
        self._audio_tokens.use(fingerprint, on_disk=not _learns_to_hear(adapter, live.model))
        recordings = {
            audio.digest: audio
            for benchmark, condition in heard
            # A rank without a question runs the first, for the others' sake.
            for item in (benchmark.items[index] for index in shares[benchmark.name] or [0])
            for candidate in range(len(item.candidates))
            for audio in prompt(condition, benchmark.language, item, candidate).recordings
        }
        self._tokenise_speech(adapter, live, ranks, recordings.values(), progress)
        questions = ranks.together(
            lambda: [encode(benchmark, condition, adapter, self._audio_tokens.get, shares[benchmark.name]) for benchmark, condition in asked],
            "while laying out questions",
        )
        self._questions = (key, questions)
        return questions

    def _each_text_once(self, asked: Sequence[tuple[Benchmark, Condition]]) -> list[tuple[Benchmark, Condition]]:
        """Without T→T of sets that differ from another in their voice alone; it is taken from that one."""
        self._read_alike = {}
        texts: dict[tuple[object, ...], str] = {}
        kept = []
        for benchmark, condition in asked:
            if condition == "t2t" and (twin := texts.setdefault(written(benchmark), benchmark.name)) != benchmark.name:
                self._read_alike[benchmark.name] = twin
            else:
                kept.append((benchmark, condition))
        return kept

    def _tokenise_speech(self, adapter: Adapter, live: LiveModel, ranks: Ranks, recordings: Iterable[Audio], progress: bool) -> None:
        """Fills the cache with recordings.

        Recordings are read ahead in threads, and the front-end is entered equally often on every rank.
        """
        missing = ranks.together(lambda: [audio for audio in recordings if audio not in self._audio_tokens], "while looking into the cache")
        chunks = [missing[start : start + _READ_AHEAD] for start in range(0, len(missing), _READ_AHEAD)]
        with ThreadPoolExecutor(_READERS) as pool:

            def start_reading(number: int) -> list[Future[Tensor]]:
                return [pool.submit(load_waveform, audio, adapter.sample_rate) for audio in (chunks[number] if number < len(chunks) else [])]

            reading = start_reading(0)
            with tqdm(total=len(missing), desc="S2SBench speech", unit="recording", leave=False, disable=not progress) as bar:
                for number in range(ranks.maximum(len(chunks))):
                    current = reading
                    waveforms = ranks.together(lambda: [future.result() for future in current], "while reading speech")  # noqa: B023  # run at once
                    reading = start_reading(number + 1)
                    self._encode(adapter, live, ranks, chunks[number] if number < len(chunks) else [], waveforms, bar.update)

    def _encode(
        self, adapter: Adapter, live: LiveModel, ranks: Ranks, audios: Sequence[Audio], waveforms: list[Tensor], advance: Callable[[], object]
    ) -> None:
        """Tokenises recordings, in as many forwards of the front-end as any rank needs."""
        silence = torch.zeros(adapter.sample_rate, dtype=torch.float32)

        def work() -> None:
            for number in range(forwards):
                self.front_end_forwards += 1
                try:
                    waveform = (waveforms[number] if number < len(waveforms) else silence).to(live.device)
                    # In its own precision, so that codes kept on disk serve runs of every precision.
                    with torch.autocast(live.device.type, enabled=False):
                        codes = live.enter(lambda: adapter.encode_audio(live.model, waveform))  # noqa: B023  # run at once
                except Exception as error:
                    if live.is_sharded and ranks.size > 1:
                        end_the_job(f"rank {ranks.rank}, while tokenising speech: {type(error).__name__}: {error}", live.end_others)
                    raise
                if number < len(waveforms):
                    self._audio_tokens.put(audios[number], codes)
                    advance()

        forwards = ranks.maximum(len(waveforms))
        ranks.together(work, "while tokenising speech")


def _cost(item: Item) -> float:
    """About how many positions a question takes, in either condition and before anything is tokenised; it only balances the ranks."""
    contexts = {context.audio.digest if context.audio else context.text: context for context in item.contexts}.values()
    spoken = sum(_FRAMES_PER_SECOND * context.audio.seconds for context in contexts if context.audio)
    characters = sum(len(context.text) for context in contexts) + 2 * sum(map(len, item.candidates))
    return spoken + characters / _CHARACTERS_PER_TOKEN


def _audio_fingerprint(adapter: Adapter, model: nn.Module) -> str:
    """Everything besides the recording that decides its codes."""
    content = f"{type(adapter).__qualname__} {adapter.sample_rate} {adapter.audio_fingerprint(model)}"
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _learns_to_hear(adapter: Adapter, model: nn.Module) -> bool:
    """Whether the front-end is being trained, so that its codes are of no use after this probe."""
    prefixes = tuple(entry for entry in adapter.roles(model).get("frontend", ()) if isinstance(entry, str))
    return any(parameter.requires_grad for name, parameter in named_parameters(model).items() if name.startswith(prefixes))


def _subset(benchmark: Benchmark, max_questions: int | None) -> Benchmark:
    if max_questions is None or max_questions >= len(benchmark.items):
        return benchmark
    chosen = sorted(random.Random(0).sample(range(len(benchmark.items)), max_questions))
    return replace(benchmark, items=tuple(benchmark.items[index] for index in chosen))
