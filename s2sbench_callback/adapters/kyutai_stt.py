"""Kyutai's speech-to-text model, as ``transformers`` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.parallel_streams import ParallelStreams, mimi_codes
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.role_prefixes import prefixes
from s2sbench_callback.parameter_names import plain_name
from s2sbench_callback.prompts import CANDIDATES, Condition
from s2sbench_callback.speech import module_fingerprint

_MUTE = "Kyutai STT writes what it hears and has no audio head to score spoken candidates with"


class KyutaiSTT(ParallelStreams):
    """Reads ``KyutaiSpeechToTextForConditionalGeneration``.

    Layout, S→T: one frame of initial tokens, as its ``generate`` starts; the context's codes under text PAD; ``flush_frames`` frames of PAD;
    then the candidate, one token a frame. Codes are not delayed; the text is, by as many frames as the checkpoint was trained for, so that after the
    recording the model is still writing the context's last words: give that delay in ``flush_frames`` (``audio_delay_seconds`` of its feature
    extractor, times 12.5). T→T: the initial frame, then context and candidate, one token a frame, with nobody speaking. The model has never seen
    text without speech, nor one token a frame without PAD: it transcribes, and its T→T says how good a language model the transcriber is, no more.
    S→S and T→S are refused: it has no audio head. No instruction, no end token, no added space.

    A recording longer than the window of the model's attention (30 s in the 2.6B checkpoint) is an error.

    Verified: logits equal the model's own forward on ids ``[1, T, 1 + K]`` put together by hand. The layout for continuations is this project's and
    **unverified** on trained weights.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        codebooks: Codebooks, ``config.num_codebooks``.
        flush_frames: Frames of PAD after a spoken context: the text's delay.
        quiet: What is fed where nobody speaks, in all conditions alike: nothing (``absent``: the audio padding id, whose embedding is zero), or
            the first frame of encoded ``silence``; the feature extractor pads recordings with silence.
        text_pad: Id of the text stream's PAD, ``config.pad_token_id``.
        sample_rate: Rate in Hz of Mimi.
    """

    def __init__(
        self,
        tokenizer: Any,
        codebooks: int = 32,
        flush_frames: int = 0,
        quiet: Literal["absent", "silence"] = "absent",
        text_pad: int = 3,
        sample_rate: int = 24_000,
    ) -> None:
        super().__init__(tokenizer, (0,) * codebooks, 1, 0, quiet, flush_frames, text_pad, sample_rate)

    def refusal(self, condition: Condition) -> str | None:
        """Spoken candidates are refused."""
        return _MUTE if CANDIDATES[condition] == "speech" else None

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Codes ``[F, K]`` from the model's Mimi.

        Raises:
            ValueError: If the recording is longer than the model's attention reaches, or the model has other streams than the adapter.
        """
        config = self._config(model)
        codes = mimi_codes(model.codec_model, waveform, len(self._delays))
        self._check_recording(codes, config.sliding_window)
        return codes

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of Mimi's weights, and the number of codebooks."""
        return f"{module_fingerprint(cast(nn.Module, model.codec_model))}-{len(self._delays)}"

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text, one token a frame ``[n, 1 + K]``, each of them scored."""
        if isinstance(piece, Tensor):
            raise TypeError(_MUTE)
        return super().candidate_positions(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """The model's own forward, which computes logits at the asked positions alone.

        Raises:
            ValueError: If a sequence is longer than the model's attention reaches, or the model has other streams than the adapter.
        """
        config, live = self._config(model), cast(Any, model)
        self._check_row(row, config.sliding_window)
        ids = torch.stack(self._ids(row, config.bos_token_id, config.audio_bos_token_id, lambda: self._silence(live)), dim=1)
        ids = ids.masked_fill(ids < 0, config.audio_pad_token_id).unsqueeze(0)
        logits: Tensor = live(input_ids=ids, logits_to_keep=row.sources, use_cache=False, **attention_arguments(row, live.dtype)).logits[0]
        return logits

    def _silence(self, model: Any) -> Tensor:
        still = torch.zeros(model.config.codec_config.frame_size, device=model.device)
        return mimi_codes(model.codec_model, still, len(self._delays))[0]

    def _config(self, model: Any) -> Any:
        config = model.config
        for argument, given, found in (
            ("codebooks", len(self._delays), config.num_codebooks),
            ("text_pad", self._pad, config.pad_token_id),
        ):
            if given != found:
                raise ValueError(f"KyutaiSTT was built with {argument}={given}, and {type(model).__name__} has {found}; pass {argument}={found}")
        return config

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Text and audio share one table: its first ``vocab_size`` rows are text."""
        live = cast(Any, model)
        body, embeddings, text = live.get_decoder(), live.get_input_embeddings(), live.config.vocab_size
        table = embeddings.embed_tokens.weight
        name = next(plain_name(name) for name, parameter in model.named_parameters() if parameter is table)
        # What LoRA puts beside the table has no rows of text or audio.
        beside = tuple(plain_name(each) for each, _ in model.named_parameters() if plain_name(each).startswith(prefixes(model, [embeddings])))
        return {
            "audio_embedding": (Rows(name, text, table.shape[0]),),
            "lm_embedding": (Rows(name, 0, text), *(each for each in beside if each != name)),
            "lm_head": prefixes(model, [live.get_output_embeddings()]),
            "lm_body": prefixes(model, [body.layers, body.norm]),
            "frontend": prefixes(model, [live.codec_model]),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer and every choice of the layout."""
        return {"adapter": "kyutai_stt", **super().signature(), "verified": "unverified layout: the model transcribes, it does not continue"}
