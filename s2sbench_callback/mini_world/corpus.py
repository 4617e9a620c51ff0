"""Training speech of the embedded world: every sentence of its grammar, spoken several times.

Stories are put together from these sentences, so a handful of renderings makes more speech than a run can hear. All sentences of one
story come from the same rendering and so keep one speed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
import torchaudio
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm

from s2sbench_callback.cache import made_once, shows_progress
from s2sbench_callback.mini_world.speech_tokenizer import SAMPLE_RATE
from s2sbench_callback.mini_world.stories import Story, training_stories
from s2sbench_callback.mini_world.voice import FASTEST, SLOWEST, Voice
from s2sbench_callback.mini_world.voice import SAMPLE_RATE as VOICE_SAMPLE_RATE

_SENTENCES_FROM_STORIES = 8_000


@dataclass(frozen=True)
class Corpus:
    """Spoken sentences.

    Attributes:
        renderings: How often each sentence was spoken, each time at another speed.
        waveforms: By sentence and rendering, int16 ``[N]`` at 16 kHz.
    """

    renderings: int
    waveforms: dict[tuple[str, int], Tensor]

    def stories(self, seed: int) -> Iterator[Story]:
        """An endless stream of training stories that the corpus can speak."""
        for story in training_stories(seed):
            if all((sentence, 0) in self.waveforms for sentence in story.sentences):
                yield story

    def speak(self, sentences: Sequence[str], rendering: int) -> list[Tensor]:
        """Waveform of each sentence, float32 ``[N]`` in [-1, 1] at 16 kHz."""
        return [self.waveforms[sentence, rendering].float() / 32_768 for sentence in sentences]


def training_corpus(renderings: int, cache_folder: Path) -> Corpus:
    """Renders the corpus the first time, and loads it from then on.

    Args:
        renderings: How often each sentence is spoken.
        cache_folder: Where it is kept.

    Raises:
        ModuleNotFoundError: If the corpus has to be rendered and ``hibari-tts`` is not installed.
        ValueError: If ``renderings`` is not positive.
    """
    if renderings < 1:
        raise ValueError(f"renderings must be at least 1, got {renderings}")
    stories = itertools.islice(training_stories(seed=0), _SENTENCES_FROM_STORIES)
    sentences = sorted({sentence for story in stories for sentence in story.sentences})
    content = json.dumps([version("hibari-tts"), renderings, SLOWEST, FASTEST, sentences])
    name = f"corpus-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"
    folder = made_once(cache_folder / name, lambda unfinished: _render(unfinished, sentences, renderings))
    loaded = load_file(folder / "speech.safetensors")
    pieces = loaded["samples"].split(loaded["lengths"].tolist())
    return Corpus(renderings, dict(zip(itertools.product(sentences, range(renderings)), pieces, strict=True)))


def _render(folder: Path, sentences: Sequence[str], renderings: int) -> None:
    voice = Voice()
    resample = torchaudio.transforms.Resample(VOICE_SAMPLE_RATE, SAMPLE_RATE)
    draw = random.Random("speeds")
    # One speed a rendering, spread evenly and shaken a little.
    step = (FASTEST - SLOWEST) / renderings
    speeds = [SLOWEST + step * (rendering + draw.random()) for rendering in range(renderings)]

    def speak(job: tuple[int, tuple[str, int]]) -> Tensor:
        seed, (sentence, rendering) = job
        waveform = resample(torch.from_numpy(voice.speak(sentence, speeds[rendering], seed)))
        samples: Tensor = (waveform.clamp(-1, 1) * 32_767).round().to(torch.int16)
        return samples

    jobs = list(enumerate(itertools.product(sentences, range(renderings))))
    with ThreadPoolExecutor(2) as pool:
        bar = tqdm(pool.map(speak, jobs), total=len(jobs), desc="speaking the training sentences", unit="sentence", disable=not shows_progress())
        pieces = list(bar)
    lengths = torch.tensor([len(piece) for piece in pieces])
    save_file({"samples": torch.cat(pieces), "lengths": lengths}, folder / "speech.safetensors")
