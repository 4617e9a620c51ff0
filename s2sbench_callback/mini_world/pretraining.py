"""The text LLM that the speech training starts from, with a speech tokenizer fitted on the training speech."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tqdm.auto import tqdm

from s2sbench_callback.adapters import SummedCodebooks
from s2sbench_callback.cache import made_once, shows_progress
from s2sbench_callback.mini_world.corpus import Corpus, training_corpus
from s2sbench_callback.mini_world.layouts import Layouts, collate
from s2sbench_callback.mini_world.losses import next_token_losses
from s2sbench_callback.mini_world.model import MiniSpeechLM, MiniSpeechLMConfig
from s2sbench_callback.mini_world.stories import training_stories
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer

_FITTED_ON_STORIES = 600
_WARM_UP_STEPS = 30
_RECIPE = 1  # Raise it when this file changes what comes out.


@dataclass(frozen=True)
class Pretraining:
    """How the text LLM is made.

    Attributes:
        steps: Optimizer steps on stories.
        batch_size: Stories a step.
        learning_rate: Highest rate; warmed up, then lowered along a cosine to a tenth.
        renderings: How often the training corpus speaks each sentence.
        hidden_size: Width of the LM.
        layers: Depth of the LM.
        codebook_sizes: Entries of each audio codebook.
        seed: Decides weights and stories.
    """

    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 2e-3
    renderings: int = 8
    hidden_size: int = 160
    layers: int = 4
    codebook_sizes: tuple[int, ...] = (256, 128, 128, 128)
    seed: int = 0


def mini_adapter() -> SummedCodebooks:
    """How the small speech LM is read."""
    return SummedCodebooks(build_text_tokenizer(), audio_start=AUDIO_START, audio_end=AUDIO_END)


def build_model(pretraining: Pretraining) -> MiniSpeechLM:
    """The small speech LM with random weights."""
    config = MiniSpeechLMConfig(
        vocab_size=len(build_text_tokenizer()),
        hidden_size=pretraining.hidden_size,
        num_hidden_layers=pretraining.layers,
        num_attention_heads=pretraining.hidden_size // 32,
        num_key_value_heads=pretraining.hidden_size // 32,
        intermediate_size=pretraining.hidden_size * 3,
        max_position_embeddings=1_024,
        tie_word_embeddings=False,
        audio_codebook_sizes=pretraining.codebook_sizes,
    )
    return MiniSpeechLM(config)


def pretrained_weights(pretraining: Pretraining, cache_folder: Path) -> Path:
    """Makes the text LLM the first time, and finds it from then on.

    Args:
        pretraining: How.
        cache_folder: Where it is kept, and the training speech beside it.

    Returns:
        A safetensors file with the weights of a whole :class:`MiniSpeechLM`: body and text head trained on text, audio parts
        random, speech tokenizer fitted.
    """
    sample = [story.context + story.right for story in itertools.islice(training_stories(pretraining.seed), 100)]
    content = json.dumps([_RECIPE, asdict(pretraining), sample, torch.__version__])
    name = f"text-lm-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"
    return made_once(cache_folder / name, lambda unfinished: _pretrain(unfinished, pretraining, cache_folder)) / "model.safetensors"


def _pretrain(folder: Path, pretraining: Pretraining, cache_folder: Path) -> None:
    corpus = training_corpus(pretraining.renderings, cache_folder)
    # Own random generator: what follows must not depend on whether this was cached.
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(pretraining.seed)
        model = build_model(pretraining)
        model.audio_tokenizer.fit(_speech(corpus, pretraining.seed), pretraining.seed)
        _train_on_text(model, pretraining)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")


def _speech(corpus: Corpus, seed: int) -> list[torch.Tensor]:
    stories = itertools.islice(corpus.stories(seed), _FITTED_ON_STORIES)
    return [torch.cat(corpus.speak(story.sentences, number % corpus.renderings)) for number, story in enumerate(stories)]


def _train_on_text(model: MiniSpeechLM, pretraining: Pretraining) -> None:
    layouts = Layouts(mini_adapter(), len(pretraining.codebook_sizes))
    stories = training_stories(pretraining.seed)
    text_parameters = [p for name, p in model.named_parameters() if "audio_" not in name]
    optimizer = torch.optim.AdamW(text_parameters, lr=pretraining.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    model.train()
    bar = tqdm(range(pretraining.steps), desc="training the text LLM", unit="step", disable=not shows_progress())
    for step in bar:
        cosine = 0.55 + 0.45 * math.cos(math.pi * step / pretraining.steps)
        for group in optimizer.param_groups:
            group["lr"] = pretraining.learning_rate * min(1.0, (step + 1) / _WARM_UP_STEPS) * cosine
        batch = collate([layouts.written(next(stories)) for _ in range(pretraining.batch_size)])
        loss, _ = next_token_losses(model, batch["streams"], batch["weights"])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(text_parameters, 1.0)
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def load_pretrained(model: MiniSpeechLM, path: Path) -> None:
    """Fills a model with the weights that :func:`pretrained_weights` made."""
    model.load_state_dict(load_file(path))
