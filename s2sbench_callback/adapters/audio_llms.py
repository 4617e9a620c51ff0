"""Speech LMs of ``transformers`` that hear in continuous features: Qwen2-Audio, the thinkers of Qwen2.5-Omni and Qwen3-Omni, Voxtral."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_bidirectional_mask

from s2sbench_callback.adapters.projected_features import (
    Parts,
    ProjectedFeatures,
    check_length,
    entering,
    log_mel,
    not_empty,
    split_processor,
    unwrapped,
)
from s2sbench_callback.prompts import Modality


class _AudioLLM(ProjectedFeatures):
    """What the four share: a processor, one token on each side of a recording, ``model.language_model`` and ``lm_head``."""

    def __init__(
        self, processor: Any, feature_extractor: Any, before: list[tuple[str, str]], after: list[tuple[str, str]], bos: bool | None, instruction: bool
    ) -> None:
        tokenizer, self.feature_extractor = split_processor(processor, feature_extractor, type(self).__name__)
        super().__init__(tokenizer, bos, instruction, int(self.feature_extractor.sampling_rate))
        self._before = [self._text.token(token, argument) for token, argument in before]
        self._after = [self._text.token(token, argument) for token, argument in after]

    def _around(self) -> tuple[list[int], list[int]]:
        return self._before, self._after

    def _hears_with(self) -> Any:
        return self.feature_extractor.to_dict()

    def _read(self, model: nn.Module, arguments: dict[str, Any], sources: Tensor) -> Tensor:
        live = unwrapped(model)
        logits: Tensor = live.lm_head(live.model.language_model(**arguments).last_hidden_state[0][sources])
        return logits

    def _parts(self, model: nn.Module) -> Parts:
        live = unwrapped(model)
        projector = self._projector(live)
        inside = {id(module) for module in projector}
        tower = live.model.audio_tower
        holds_it = any(id(child) in inside for child in tower.children())
        encoder = tuple(child for child in tower.children() if id(child) not in inside) if holds_it else (tower,)
        visual = getattr(live.model, "visual", None)
        return Parts(encoder, projector, live.get_input_embeddings(), live.get_output_embeddings(), idle=() if visual is None else (visual,))

    def _projector(self, live: Any) -> tuple[nn.Module, ...]:
        return (live.model.multi_modal_projector,)

    def _project(self, model: nn.Module, features: Tensor) -> Tensor:
        for module in self._projector(unwrapped(model)):
            features = module(features)
        return features


class Qwen2Audio(_AudioLLM):
    """Reads ``Qwen2AudioForConditionalGeneration`` of ``transformers``.

    Layout: text, then for each recording ``<|audio_bos|>``, one position for 40 ms, ``<|audio_eos|>``, then the candidate: a continuation
    as the base model reads it, without the chat format. No BOS (Qwen's tokenizers put none), no end token; the spacing is the release's.

    Recordings go through the model's feature extractor, padded to its 30 s as the processor pads them, and the encoder's real positions are kept. A
    longer recording is an error, since the model would not hear its end.

    Verified: logits equal the model's own forward on placeholders and ``input_features``, with tiny random weights.

    Args:
        processor: The model's processor; or its tokenizer, with ``feature_extractor`` beside it.
        feature_extractor: The model's ``WhisperFeatureExtractor``; by default the processor's.
        audio_start: Token that opens a recording.
        audio_end: Token that closes it.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If there is no feature extractor, or the tokenizer does not know a token.
    """

    def __init__(
        self,
        processor: Any,
        feature_extractor: Any = None,
        audio_start: str = "<|audio_bos|>",
        audio_end: str = "<|audio_eos|>",
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(processor, feature_extractor, [(audio_start, "audio_start")], [(audio_end, "audio_end")], bos, instruction)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, D]`` of the encoder.

        Raises:
            ValueError: If the recording is longer than the feature extractor's window, or too short.
        """
        check_length(waveform, self.feature_extractor.n_samples, self._sample_rate, "Qwen2-Audio")
        tower = unwrapped(model).model.audio_tower
        mel, real = log_mel(self.feature_extractor, waveform, padding="max_length")
        inner, kept = tower._get_feat_extract_output_lengths(real.sum(-1))
        places = torch.arange((mel.shape[-1] - 2) // 2 + 1, device=mel.device)
        # The encoder is told which of its frames are real in the way that the model's forward tells it.
        mask = create_bidirectional_mask(
            config=tower.config, inputs_embeds=tower.conv1.weight.new_zeros(1, len(places), 1), attention_mask=(places < inner).long()[None]
        )
        states: Tensor = tower(mel, attention_mask=mask).last_hidden_state[0]
        return not_empty(states[: int(kept)], waveform, self._sample_rate)

    def signature(self) -> Mapping[str, str]:
        """Adapter and every choice of the layout."""
        return {"adapter": "qwen2_audio", **super().signature()}


class _OmniThinker(_AudioLLM):
    """What the two thinkers share: the projector is the end of the tower, and positions have three axes."""

    def _captured(self, model: nn.Module, waveform: Tensor, **padding: Any) -> Tensor:
        live = unwrapped(model)
        mel, real = log_mel(self.feature_extractor, waveform, **padding)
        features = entering(self._projector(live)[0], lambda: live.model.get_audio_features(mel, feature_attention_mask=real))
        return not_empty(features, waveform, self._sample_rate)

    def _read(self, model: nn.Module, arguments: dict[str, Any], sources: Tensor) -> Tensor:
        # Without them the model would take positions from its last batch (rope_deltas).
        return super()._read(model, {**arguments, "position_ids": arguments["position_ids"].expand(3, 1, -1)}, sources)


class Qwen25OmniThinker(_OmniThinker):
    """Reads ``Qwen2_5OmniThinkerForConditionalGeneration`` of ``transformers``, the part of Qwen2.5-Omni that hears and writes.

    Layout: text, then for each recording ``<|audio_bos|>``, one position for 40 ms, ``<|audio_eos|>``, then the candidate: a continuation
    without the chat format. No BOS (Qwen's tokenizers put none), no end token; the spacing is the release's. Positions count through text and speech
    alike on all three axes, as the model itself counts them where there is no picture.

    Recordings go through the model's feature extractor, padded to its window (300 s) as the processor pads them; a longer recording is an error. The
    features are what enters ``audio_tower.proj``, which is the projector.

    Verified: logits equal the thinker's own forward on placeholders and ``input_features``, with tiny random weights.

    Args:
        processor: The model's processor; or its tokenizer, with ``feature_extractor`` beside it.
        feature_extractor: The model's ``WhisperFeatureExtractor``; by default the processor's.
        audio_start: Token that opens a recording.
        audio_end: Token that closes it.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If there is no feature extractor, or the tokenizer does not know a token.
    """

    def __init__(
        self,
        processor: Any,
        feature_extractor: Any = None,
        audio_start: str = "<|audio_bos|>",
        audio_end: str = "<|audio_eos|>",
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(processor, feature_extractor, [(audio_start, "audio_start")], [(audio_end, "audio_end")], bos, instruction)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, D]``: what enters ``audio_tower.proj``.

        Raises:
            ValueError: If the recording is longer than the feature extractor's window, or too short.
        """
        check_length(waveform, self.feature_extractor.n_samples, self._sample_rate, "Qwen2.5-Omni")
        return self._captured(model, waveform, padding="max_length")

    def _projector(self, live: Any) -> tuple[nn.Module, ...]:
        return (live.model.audio_tower.proj,)

    def signature(self) -> Mapping[str, str]:
        """Adapter and every choice of the layout."""
        return {"adapter": "qwen2_5_omni_thinker", **super().signature()}


class Qwen3OmniThinker(_OmniThinker):
    """Reads ``Qwen3OmniMoeThinkerForConditionalGeneration`` of ``transformers``, the part of Qwen3-Omni that hears and writes.

    Layout: text, then for each recording ``<|audio_start|>``, one position for about 80 ms, ``<|audio_end|>``, then the candidate: a
    continuation without the chat format. No BOS (Qwen's tokenizers put none), no end token; the spacing is the release's. Positions count
    through text and speech alike on all three axes, as the model itself counts them where there is no picture.

    Recordings of any length go through the model's feature extractor unpadded, as the processor passes them. The features are what enters
    ``audio_tower.proj1``; the projector is ``proj1``, ``act`` and ``proj2``.

    Verified: logits equal the thinker's own forward on placeholders and ``input_features``, with tiny random weights.

    Args:
        processor: The model's processor; or its tokenizer, with ``feature_extractor`` beside it.
        feature_extractor: The model's ``WhisperFeatureExtractor``; by default the processor's.
        audio_start: Token that opens a recording.
        audio_end: Token that closes it.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If there is no feature extractor, or the tokenizer does not know a token.
    """

    def __init__(
        self,
        processor: Any,
        feature_extractor: Any = None,
        audio_start: str = "<|audio_start|>",
        audio_end: str = "<|audio_end|>",
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(processor, feature_extractor, [(audio_start, "audio_start")], [(audio_end, "audio_end")], bos, instruction)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, D]``: what enters ``audio_tower.proj1``."""
        return self._captured(model, waveform, padding=True, truncation=False)

    def _projector(self, live: Any) -> tuple[nn.Module, ...]:
        tower = live.model.audio_tower
        return tower.proj1, tower.act, tower.proj2

    def signature(self) -> Mapping[str, str]:
        """Adapter and every choice of the layout."""
        return {"adapter": "qwen3_omni_thinker", **super().signature()}


class Voxtral(_AudioLLM):
    """Reads ``VoxtralForConditionalGeneration`` of ``transformers``.

    Layout ``continuation``: BOS, instruction, for each recording ``[BEGIN_AUDIO]`` and one position for 80 ms, then the candidate. Layout
    ``instruct``, which the released checkpoints were tuned for: BOS, ``[INST]``, the same context, ``[/INST]``, candidate; in T→T likewise.
    No end token; the spacing is the release's.

    The benchmark defines no layout for Voxtral. ``continuation`` is the default since a candidate continues what was heard and is no reply to it.

    The processor pads every recording with silence to a whole number of 30 s, and the model reads all of it: 375 positions for each 30 s
    begun. That is kept by default. ``silence="dropped"`` keeps the positions that begin within the recording, which the model was not trained for.

    Verified: logits equal the model's own forward on placeholders and ``input_features``, with tiny random weights; the names and order of special
    tokens against mistral-common's source. Which layout suits a trained Voxtral is unverified.

    Args:
        processor: The model's processor; or its tokenizer, with ``feature_extractor`` beside it. The released tokenizer needs ``mistral-common``.
        feature_extractor: The model's ``WhisperFeatureExtractor``; by default the processor's.
        layout: Whether the context is a text to be continued or a user's turn.
        silence: What becomes of the positions of the padding.
        audio_start: Token that opens a recording.
        turn_start: Token that opens a user's turn, in the layout ``instruct``.
        turn_end: Token that closes it.
        bos: Whether to start each sequence with the tokenizer's BOS token; by default as the tokenizer does by itself.
        instruction: Whether the paper's instruction is read before a spoken context.

    Raises:
        ValueError: If there is no feature extractor, or the tokenizer does not know a token.
    """

    def __init__(
        self,
        processor: Any,
        feature_extractor: Any = None,
        layout: Literal["continuation", "instruct"] = "continuation",
        silence: Literal["kept", "dropped"] = "kept",
        audio_start: str = "[BEGIN_AUDIO]",
        turn_start: str = "[INST]",
        turn_end: str = "[/INST]",
        bos: bool | None = None,
        instruction: bool = True,
    ) -> None:
        super().__init__(processor, feature_extractor, [(audio_start, "audio_start")], [], bos, instruction)
        self._layout = layout
        self._silence = silence
        turns = layout == "instruct"
        self._turn = ([self._text.token(turn_start, "turn_start")], [self._text.token(turn_end, "turn_end")]) if turns else ([], [])

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, 2]``, in the user's turn where the layout has one; ``[L, 1]``, text alone, where there is no speech."""
        opening, closing = self._turn
        return super().context_streams([opening, *parts, closing], candidate)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """``[F, D]``: four frames of the encoder side by side at each position."""
        not_empty(waveform, waveform, self._sample_rate)
        live, chunk = unwrapped(model), int(self.feature_extractor.n_samples)
        mel, _ = log_mel(self.feature_extractor, waveform, padding=True, truncation=False, pad_to_multiple_of=chunk)
        chunks = mel[0].unflatten(1, (-1, chunk // self.feature_extractor.hop_length)).transpose(0, 1)
        features = entering(live.model.multi_modal_projector, lambda: live.model.get_audio_features(chunks))
        if self._silence == "dropped":
            samples = chunk * len(chunks) // len(features)
            features = features[: -(-len(waveform) // samples)]
        return features

    def _hears_with(self) -> Any:
        return super()._hears_with(), self._silence

    def signature(self) -> Mapping[str, str]:
        """Adapter and every choice of the layout."""
        return {
            "adapter": "voxtral",
            **super().signature(),
            "layout": self._layout,
            "turn": ",".join(str(token) for tokens in self._turn for token in tokens) or "none",
            "silence": self._silence,
        }
