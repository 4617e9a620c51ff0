"""Speech and text of the embedded world, mixed for training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from s2sbench_callback.cache import cache_folder
from s2sbench_callback.mini_world.corpus import Corpus, training_corpus
from s2sbench_callback.mini_world.layouts import Layouts, Sequenced, collate
from s2sbench_callback.mini_world.pretraining import Pretraining, build_model, load_pretrained, mini_adapter, pretrained_weights
from s2sbench_callback.mini_world.speech_tokenizer import SpeechTokenizer

_SAMPLES = 1_000_000


@dataclass(frozen=True)
class Mix:
    """Share of each layout among the training sequences; any numbers, taken in proportion.

    Attributes:
        spoken_then_ending: Spoken context, written ending.
        spoken_then_transcript: Spoken context, then its transcript.
        interleaved: Sentences spoken and written in turn.
        written: Text alone.
    """

    spoken_then_ending: float = 0.50
    spoken_then_transcript: float = 0.25
    interleaved: float = 0.12
    written: float = 0.13


class MiniData(pl.LightningDataModule):
    """Endless speech and text: each sample is a function of its number and the seed.

    Args:
        batch_size: Sequences a batch.
        mix: Share of each layout.
        pretraining: How the text LLM and the speech tokenizer are made.
        seed: Decides the samples.
        cache_dir: Where speech and text LLM are kept; by default the user's cache folder.
        num_workers: Processes that prepare batches; 0 prepares them in the training process.
    """

    def __init__(
        self,
        batch_size: int = 16,
        mix: Mix = Mix(),  # frozen
        pretraining: Pretraining = Pretraining(),  # noqa: B008  # frozen
        seed: int = 1,
        cache_dir: str | Path | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.mix = mix
        self.pretraining = pretraining
        self.seed = seed
        self.cache_folder = cache_folder(cache_dir)
        self.num_workers = num_workers
        self._samples: _Samples | None = None

    def prepare_data(self) -> None:
        """Speaks the training sentences and trains the text LLM, once."""
        pretrained_weights(self.pretraining, self.cache_folder)

    def setup(self, stage: str) -> None:
        """Loads speech and speech tokenizer."""
        if self._samples is None:
            with torch.random.fork_rng(devices=[]):
                model = build_model(self.pretraining)
            load_pretrained(model, pretrained_weights(self.pretraining, self.cache_folder))
            corpus = training_corpus(self.pretraining.renderings, self.cache_folder)
            self._samples = _Samples(corpus, model.audio_tokenizer, self.mix, self.seed)

    def train_dataloader(self) -> DataLoader[Sequenced]:
        """Batches of ``streams`` ``[B, L, 1 + K]`` and ``weights`` ``[B, L]``."""
        assert self._samples is not None
        return DataLoader(self._samples, self.batch_size, shuffle=True, collate_fn=collate, num_workers=self.num_workers)


@dataclass
class _Samples(Dataset[Sequenced]):
    corpus: Corpus
    audio_tokenizer: SpeechTokenizer
    mix: Mix
    seed: int
    layouts: Layouts = field(init=False)

    def __post_init__(self) -> None:
        self.layouts = Layouts(mini_adapter(), len(self.audio_tokenizer.codebook_sizes))

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> Sequenced:
        draw = random.Random(f"{self.seed} {index}")
        story = next(self.corpus.stories(draw.getrandbits(48)))
        shares = vars(self.mix)
        layout = draw.choices(list(shares), list(shares.values()))[0]
        if layout == "written":
            return self.layouts.written(story)
        codes = self._encode(self.corpus.speak(story.sentences, draw.randrange(self.corpus.renderings)))
        if layout == "interleaved":
            return self.layouts.interleaved(story, codes, draw)
        sequenced: Sequenced = getattr(self.layouts, layout)(story, codes)
        return sequenced

    def _encode(self, sentences: list[Tensor]) -> list[Tensor]:
        """Codes of each sentence, from the whole story at once, as the probe hears it; borders fall on the nearest frame."""
        codes: Tensor = self.audio_tokenizer(torch.cat(sentences))
        ends = torch.tensor([len(sentence) for sentence in sentences]).cumsum(0)
        borders = (ends * len(codes) / ends[-1]).round().long().tolist()
        return list(_between(codes, borders))


def _between(codes: Tensor, borders: list[int]) -> Iterator[Tensor]:
    start = 0
    for border in borders:
        yield codes[start:border]
        start = border
