"""A byte-level BPE tokenizer for the embedded stories."""

from __future__ import annotations

import functools
import itertools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from s2sbench_callback.mini_world.stories import training_stories
from s2sbench_callback.prompts import SPOKEN_INSTRUCTION

PAD, AUDIO_START, AUDIO_END = "<|pad|>", "<|audio_start|>", "<|audio_end|>"
VOCABULARY = 768


@functools.cache
def build_text_tokenizer() -> PreTrainedTokenizerFast:
    """Learns the tokenizer from training stories; every call gives the same one.

    It is byte-level, so any text in any language can be read, and knows the special tokens ``<|pad|>``,
    ``<|audio_start|>`` and ``<|audio_end|>``.
    """
    stories = itertools.islice(training_stories(seed=0), 2_000)
    # Endings also stand without a space before them, as candidates of a spoken context do.
    told = itertools.chain.from_iterable((f"{story.context} {story.right}", story.right) for story in stories)
    texts = itertools.chain(told, itertools.repeat(SPOKEN_INSTRUCTION["en"], 100))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, AUDIO_START, AUDIO_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, additional_special_tokens=[AUDIO_START, AUDIO_END])
