"""NeMo's duplex models, of its collection ``speechlm2``: LightningModules that hear, write and speak frame by frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.nemo_perception import entering_projection, fingerprint, heard, perception_roles, placed
from s2sbench_callback.adapters.parallel_streams import earlier
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.role_prefixes import prefixes
from s2sbench_callback.adapters.text_ids import TextIds, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.prompts import CANDIDATES, Condition, Modality

_DUPLEX_HEARS_TWICE = (
    "NeMo's duplex models hear a context through perception and speak through their audio codec, at another rate, and DuplexSTTModel does not "
    "speak at all; NeMoDuplex reads recordings through perception alone, so a spoken candidate cannot be scored"
)
_DUPLEX_LAYOUT = "this project's: one token a frame after the context, the user quiet"


class NeMoDuplex:
    """Reads ``DuplexS2SModel`` and ``DuplexSTTModel``; the language model is the LightningModule itself, ``locator="."``.

    A position is a frame, the sum of the model's text, of its own voice's codebooks (``DuplexS2SModel``), and of what it hears, by the weights of its
    configuration. The logits at a frame are about the text of the next.

    Layout, S→T: the recording's frames under text PAD, with ``flush_seconds`` of silence heard behind it; with ``turn`` a frame of the text's BOS,
    which opens what the model says in training; then the candidate, one token a frame. T→T: the BOS, context and candidate, one token a frame,
    all said by the model. No end token, no instruction; spacing is the paper's. S→S and T→S are refused: see :meth:`refusal`.

    While nobody speaks, a channel is ``silence``: the user's is the middle frame of what perception makes of a second of silence, the model's
    own the middle frame of the codec's codes of one, with the model's control codes where its own ``prepare_inputs`` puts them (delay in the
    first frame, speech BOS after the text's). ``absent`` feeds nothing on both, which training never shows to ``DuplexS2SModel``; ``quiet="absent",
    turn=False`` is what ``DuplexSTTModel`` reads in its batches of text alone. Silence runs perception and codec once a forward, and they wait
    for the device. The user's text, where a model predicts it too (``predict_user_text``), is PAD throughout: nothing is transcribed.

    The boosts that a configuration adds to logits of PAD, BOS and EOS in evaluation are left out: scores are the model's own.

    Roles: ``embed_audio_tokens`` and perception's projection are ``audio_embedding``, ``audio_head`` is its role; the rest of perception and
    ``audio_codec`` are ``frontend``. Features are what enters the projection, as in :class:`NeMoSALM`.

    Verified against NeMo 3.0.0: logits equal the models' own ``prepare_inputs`` and ``forward``. The benchmark defines no layout for duplex
    models: one token a frame after a silent turn is **unverified** on trained weights.
    ``DuplexS2SSpeechDecoderModel``, which does not feed its own voice to the LLM, is read as its source says and **unverified**.

    Args:
        tokenizer: The model's own ``tokenizer`` (NeMo's ``AutoTokenizer``), or a ``transformers`` tokenizer.
        quiet: What is fed where nobody speaks, in all conditions alike.
        turn: Whether a frame of the text's BOS opens what the model says.
        flush_seconds: Silence that is heard after a recording, in seconds.
        text_pad: Id of the text's PAD; by default as NeMo finds it: the tokenizer's padding token, else ``unk``, else 0.
        sample_rate: Rate in Hz that perception expects.

    Raises:
        ValueError: If ``flush_seconds`` is negative, or ``turn`` is asked for and the tokenizer has no BOS token.
    """

    def __init__(
        self,
        tokenizer: Any,
        quiet: Literal["silence", "absent"] = "silence",
        turn: bool = True,
        flush_seconds: float = 0.0,
        text_pad: int | None = None,
        sample_rate: int = 16_000,
    ) -> None:
        if flush_seconds < 0:
            raise ValueError(f"flush_seconds is the silence after a recording and cannot be {flush_seconds}; pass 0 for none")
        self._text = TextIds(tokenizer)
        self.tokenizer = self._text.tokenizer
        found = (getattr(self.tokenizer, name, None) for name in ("pad_token_id", "unk_token_id"))
        self._pad = next((each for each in (text_pad, *found) if each is not None), 0)
        bos = getattr(self.tokenizer, "bos_token_id", None)
        if turn and bos is None:
            raise ValueError(f"turn=True, but the tokenizer {self._text.name} has no BOS token to open a turn with; pass turn=False")
        self._turn = [int(bos)] if turn and bos is not None else []
        self._quiet = quiet
        self._flush_seconds = flush_seconds
        self._sample_rate = sample_rate

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that perception expects."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """Spoken candidates are refused: the model hears by features and speaks by codes of its codec, two readings of recordings."""
        return _DUPLEX_HEARS_TWICE if CANDIDATES[condition] == "speech" else None

    def instruction(self, condition: Condition, language: Language) -> str:
        """None: these models listen and speak."""
        return ""

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        return self._text.encode(text)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Features ``[F, D]`` that enter perception's projection, of the recording and the silence behind it.

        Raises:
            ValueError: If the model hears at another rate.
        """
        live: Any = model
        silence = round(self._flush_seconds * self._sample_rate)
        return heard(live.perception, nn.functional.pad(waveform, (0, silence)), self._sample_rate)

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of perception without its projection, and the silence behind a recording."""
        live: Any = model
        return f"{fingerprint(live.perception)}-{self._flush_seconds}"

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """``[L, 2]``: the model's text, and rows of the features; ``[L, 1]`` where there is no speech."""
        streams = 1 + any(isinstance(part, Tensor) for part in parts)
        pieces: list[Tensor] = []
        heard, speaking = 0, False
        for part in [*parts, []]:
            if isinstance(part, Tensor):
                rows = torch.arange(heard, heard + len(part))
                pieces.append(torch.stack([torch.full_like(rows, self._pad), rows], dim=1))
                heard, speaking = heard + len(part), False
            else:
                pieces.append(text_candidate(part if speaking else [*self._turn, *part], streams).streams)
                speaking = True
        return torch.cat(pieces)

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """Text, one token a frame ``[n, 1]``, each of them scored."""
        if isinstance(piece, Tensor):
            raise TypeError(_DUPLEX_HEARS_TWICE)
        return text_candidate(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """The frames' sums, the LLM, and the text head at the asked positions; the audio head is never run.

        Raises:
            ValueError: If the model has another PAD or BOS than the adapter.
        """
        live: Any = model
        self._check_control_tokens(live)
        text = row.streams[:, 0]
        # In the order of the models' own sums, which in low precision is not any.
        hidden = live.embed_tokens(text)
        if not hasattr(live, "embed_audio_tokens"):
            hidden = hidden * live.cfg.get("duplex_text_channel_weight", 1.0)
        elif self._quiet == "silence" and not hasattr(live, "speech_generation"):
            for table, codes in zip(live.embed_audio_tokens, self._own_voice(live, row).unbind(1), strict=True):
                hidden = hidden + table(codes)
        features, rows = self._user(live, row)
        if features is not None:
            hidden = hidden + placed(live.perception, features, rows, hidden.dtype) * live.cfg.get("duplex_user_channel_weight", 1.0)
        if getattr(live, "predict_user_text", False):
            hidden = hidden + live.embed_asr_tokens(torch.full_like(text, self._pad)) * live.cfg.get("duplex_asr_text_weight", 1.0)
        output = live.llm(inputs_embeds=hidden.unsqueeze(0), use_cache=False, **attention_arguments(row, hidden.dtype))
        logits: Tensor = live.lm_head(output.last_hidden_state[0][row.sources])
        return logits

    def _check_control_tokens(self, model: Any) -> None:
        if model.text_pad_id != self._pad:
            raise ValueError(
                f"NeMoDuplex feeds {self._pad} as PAD, and {type(model).__name__} has {model.text_pad_id}; pass text_pad={model.text_pad_id}"
            )
        if self._turn and model.text_bos_id != self._turn[0]:
            raise ValueError(
                f"NeMoDuplex opens turns with the tokenizer's BOS {self._turn[0]}, and {type(model).__name__} has {model.text_bos_id}; "
                "pass the model's own tokenizer, or turn=False"
            )

    def _user(self, model: Any, row: Row) -> tuple[Tensor | None, Tensor]:
        """Features ``[F, D]`` of what the user says in the row, and ``[T]`` which of them each frame hears, -1 for none."""
        features = row.features
        rows = row.streams[:, -1] if features is not None else torch.full_like(row.positions, -1)
        if self._quiet == "absent":
            return features, rows
        second = torch.zeros(self._sample_rate, device=rows.device)
        with torch.autocast(rows.device.type, enabled=False):
            silence, _ = entering_projection(model.perception, second)
        still = silence[len(silence) // 2].unsqueeze(0)
        together = still if features is None else torch.cat([features, still.to(features.dtype)])
        return together, torch.where(rows < 0, len(together) - 1, rows)

    def _own_voice(self, model: Any, row: Row) -> Tensor:
        """``[T, K]`` codes of the model's own silence, a frame late as in training, with control codes."""
        codec, device = model.audio_codec, row.streams.device
        second = torch.zeros(1, codec.sample_rate, device=device, dtype=next(codec.parameters()).dtype)
        with torch.autocast(device.type, enabled=False):
            codes, _ = codec.encode(audio=second, audio_len=torch.full((1,), second.shape[1], device=device))
        still = codes[0, :, codes.shape[2] // 2].expand(len(row.streams), -1)
        after_bos = (row.streams[:, 0][earlier(row, 1)] == model.text_bos_id) & (row.positions > 0)
        voice = torch.where(after_bos[:, None], model.speech_bos_id, still)
        return torch.where((row.positions == 0)[:, None], model.speech_delay_id, voice)

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Whole modules for every role, perception split at its projection."""
        live: Any = model
        perception = perception_roles(model, live.perception)
        speaking = [getattr(live, name, None) for name in ("audio_head", "speech_generation")]
        return {
            "audio_embedding": (*perception["audio_embedding"], *prefixes(model, [getattr(live, "embed_audio_tokens", None)])),
            "audio_head": prefixes(model, speaking),
            "lm_embedding": prefixes(model, [live.embed_tokens, getattr(live, "embed_asr_tokens", None)]),
            "lm_head": prefixes(model, [live.lm_head, getattr(live, "asr_head", None)]),
            "lm_body": prefixes(model, [live.llm]),
            "frontend": (*perception["frontend"], *prefixes(model, [getattr(live, "audio_codec", None)])),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer and every choice of the layout."""
        return {
            "adapter": "nemo_duplex",
            **self._text.signature(),
            "text_pad": str(self._pad),
            "turn": str(bool(self._turn)).lower(),
            "quiet": self._quiet,
            "flush_seconds": str(self._flush_seconds),
            "sample_rate": str(self._sample_rate),
            "boosts": "left out",
            "layout": _DUPLEX_LAYOUT,
            "verified": "unverified layout: duplex models are trained on turns, not on continuations",
        }
