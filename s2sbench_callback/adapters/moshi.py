"""Moshi, as ``transformers`` has it and as kyutai's own package has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.embedding import embedded
from s2sbench_callback.adapters.parallel_streams import TwoSpeakers, mimi_codes
from s2sbench_callback.adapters.protocol import Role, Row, Rows
from s2sbench_callback.adapters.role_prefixes import prefixes
from s2sbench_callback.isolation import evaluating
from s2sbench_callback.prompts import Condition
from s2sbench_callback.speech import module_fingerprint

_FRAMES_PER_SECOND = 12.5
_NO_MIMI = "no speech tokenizer was given; pass KyutaiMoshi(..., speech_tokenizer=mimi)"


class Moshi(TwoSpeakers):
    """Reads ``MoshiForConditionalGeneration`` of ``transformers``.

    Layout, S→T: one frame of initial tokens, as ``get_unconditional_inputs`` gives it; the context's codes on the user's channel under text
    PAD; ``flush_frames`` frames of PAD, so that the last frame's acoustic codes, which come a frame late, are heard before the first scored
    token; then the candidate, one token a frame. T→T: the initial frame, then context and candidate, one token a frame, on the text stream
    alone. S→S and T→S: after the same contexts the candidate's codes on Moshi's own channel under text PAD, read by the depth decoder, which is
    given the text PAD and the codes before the one that is scored. The last frame's acoustic codes would need a further frame and are not scored.
    No instruction, no end token, no PAD among scored tokens. The model's forward knows neither initial frame nor delays: both are made here.
    A SentencePiece tokenizer puts word starts by itself, so no space is added.

    The benchmark defines no layout for Moshi. One token a frame without PAD between words is off its training distribution.

    A sequence that is longer than the window of the model's attention is an error: for recordings when they are encoded, for written contexts
    when they are scored in a row of their own.

    Verified: logits and depth logits equal the model's own forward on the same inputs, delayed by its own ``build_delay_pattern_mask``; whether
    a trained Moshi says anything sensible in this layout is unverified.

    Args:
        tokenizer: A ``transformers`` tokenizer.
        codebooks: Codebooks a speaker, ``config.num_codebooks``.
        speech_channel: On whose channel spoken contexts play.
        quiet: What is fed on a channel on which nobody speaks: nothing (``absent``), or the first frame of encoded ``silence``, which the
            model's own ``generate`` feeds as its user; in all conditions alike.
        flush_frames: Frames of PAD after a spoken context; by default 1, the delay.
        scored: Which codes of a spoken candidate count: the ``semantic`` (first) codebook, or ``all`` of them.
        text_pad: Id of the text stream's PAD.
        sample_rate: Rate in Hz of Mimi.
    """

    def __init__(
        self,
        tokenizer: Any,
        codebooks: int = 8,
        speech_channel: Literal["user", "moshi"] = "user",
        quiet: Literal["absent", "silence"] = "absent",
        flush_frames: int | None = None,
        scored: Literal["semantic", "all"] = "semantic",
        text_pad: int = 3,
        sample_rate: int = 24_000,
    ) -> None:
        # transformers' build_delay_pattern_mask knows these delays and no others.
        delays = (0,) + (1,) * (codebooks - 1)
        super().__init__(tokenizer, delays, speech_channel, quiet, flush_frames, scored, text_pad, sample_rate)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Codes ``[F, K]`` from the model's Mimi.

        Raises:
            ValueError: If the recording is longer than the model's attention reaches, or the model has another number of codebooks.
        """
        config = self._config(model)
        codes = mimi_codes(model.audio_encoder, waveform, len(self._delays))
        self._check_recording(codes, config.sliding_window)
        return codes

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of Mimi's weights, and the number of codebooks."""
        return f"{module_fingerprint(cast(nn.Module, model.audio_encoder))}-{len(self._delays)}"

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Summed embeddings, decoder, and the text head or the depth decoder; the other is never run.

        Raises:
            ValueError: If a sequence is longer than the model's attention reaches, or the model has another number of codebooks.
        """
        config, live = self._config(model), cast(Any, model)
        self._check_row(row, config.sliding_window)
        ids = self._ids(row, config.vocab_size, config.audio_vocab_size, lambda: self._silence(live))
        tables = [live.get_input_embeddings(), *live.embed_tokens]
        hidden = torch.stack([embedded(table, of_stream) for table, of_stream in zip(tables, ids, strict=True)]).sum(0).unsqueeze(0)
        arguments = {"inputs_embeds": hidden, "use_cache": False, **attention_arguments(row, hidden.dtype)}
        if not row.asks_other_heads:
            logits: Tensor = live.decoder(logits_to_keep=row.sources, **arguments).logits[0]
            return logits
        states = live.decoder.get_decoder()(**arguments).last_hidden_state[0][row.sources]
        return self._depth_logits(live.depth_decoder, states, row)

    def _depth_logits(self, depth: Any, states: Tensor, row: Row) -> Tensor:
        """``[A, V]``: the codebooks of a frame one after another, given the text PAD and the codes before."""
        ids = nn.functional.pad(self._spoken_before(row), (1, 0), value=self._pad)
        tables = [depth.text_embed_tokens, *depth.embed_tokens][: ids.shape[1]]
        # As embeddings, since the depth decoder would wait for the device to look ids up.
        given = torch.stack([table(of_codebook) for table, of_codebook in zip(tables, ids.unbind(1), strict=True)], dim=1)
        mask = None
        if depth.config._attn_implementation == "eager":
            # Without a mask the eager attention of the depth decoder looks ahead.
            look_ahead = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu(1)
            mask = torch.zeros_like(look_ahead, dtype=given.dtype).masked_fill(look_ahead, torch.finfo(given.dtype).min)[None, None]
        by_codebook: Tensor = depth(
            input_ids=ids, inputs_embeds=given, last_hidden_state=states.unsqueeze(1), attention_mask=mask, use_cache=False
        ).logits
        return by_codebook[torch.arange(len(ids), device=ids.device), row.heads - 1]

    def _silence(self, model: Any) -> Tensor:
        still = torch.zeros(int(self._sample_rate / _FRAMES_PER_SECOND), device=model.device)
        return mimi_codes(model.audio_encoder, still, len(self._delays))[0]

    def _config(self, model: Any) -> Any:
        if model.config.num_codebooks != len(self._delays):
            raise ValueError(
                f"{type(model).__name__} has {model.config.num_codebooks} codebooks a speaker, and Moshi(codebooks={len(self._delays)}) was built "
                f"for another; pass codebooks={model.config.num_codebooks}"
            )
        return model.config

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Whole modules for every role."""
        live = cast(Any, model)
        body = live.decoder.get_decoder()
        return {
            "audio_embedding": prefixes(model, [live.embed_tokens]),
            "audio_head": prefixes(model, [live.depth_decoder]),
            "lm_embedding": prefixes(model, [live.get_input_embeddings()]),
            "lm_head": prefixes(model, [live.get_output_embeddings()]),
            "lm_body": prefixes(model, [body.layers, body.norm]),
            "frontend": prefixes(model, [live.audio_encoder]),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer and every choice of the layout."""
        return {"adapter": "moshi", **super().signature()}


class KyutaiMoshi(TwoSpeakers):
    """Reads ``LMModel`` of kyutai's package ``moshi``, with Moshi's two speakers of as many codebooks.

    Layouts are those of :class:`Moshi`. The model's ``forward`` makes initial tokens and delays by itself, and always runs its depth transformer;
    here both are made beforehand and its parts are driven: embeddings, ``transformer``, ``out_norm``, then ``text_linear`` or the depth
    transformer up to the last codebook that is asked. Logits are those of the frame that follows, as in its ``forward``.

    Its transformer takes no mask, so packed rows are refused and the engine scores one row a candidate, which is slower; pass ``packed=False``
    to be spared the warning.

    Verified: text logits and audio logits equal ``LMModel.forward``, which inserts initial tokens and delays on its own, also where channels are
    absent. Whether a trained Moshi says anything sensible in this layout is unverified.

    Args:
        tokenizer: A SentencePiece processor, or a ``transformers`` tokenizer.
        speech_tokenizer: kyutai's Mimi or its method ``encode``, or any callable from a waveform ``[N]`` to codes ``[F, K]``, on the model's
            device. Without one, only T→T can be asked.
        speech_tokenizer_name: Names a speech tokenizer that is no module, whose weights cannot be hashed.
        delays: By how many frames each codebook of a speaker comes later, ``LMModel.delays`` of one speaker.
        speech_channel: On whose channel spoken contexts play.
        quiet: What is fed on a channel on which nobody speaks: nothing (``absent``, id -1), or the first frame of encoded ``silence``.
        flush_frames: Frames of PAD after a spoken context; by default the largest delay.
        scored: Which codes of a spoken candidate count: the ``semantic`` (first) codebook, or ``all`` of them.
        text_pad: Id of the text stream's PAD.
        sample_rate: Rate in Hz of the speech tokenizer.

    Raises:
        ValueError: If the speech tokenizer is no module and has no name, ``silence`` is asked for without one, or delays fall from one codebook
            to the next.
    """

    def __init__(
        self,
        tokenizer: Any,
        speech_tokenizer: Any = None,
        speech_tokenizer_name: str | None = None,
        delays: Sequence[int] = (0, 1, 1, 1, 1, 1, 1, 1),
        speech_channel: Literal["user", "moshi"] = "user",
        quiet: Literal["absent", "silence"] = "absent",
        flush_frames: int | None = None,
        scored: Literal["semantic", "all"] = "semantic",
        text_pad: int = 3,
        sample_rate: int = 24_000,
    ) -> None:
        super().__init__(tokenizer, delays, speech_channel, quiet, flush_frames, scored, text_pad, sample_rate)
        owner = getattr(speech_tokenizer, "__self__", None)
        self._mimi: Any = owner if isinstance(owner, nn.Module) and speech_tokenizer == getattr(owner, "encode", None) else speech_tokenizer
        self._mimi_name = speech_tokenizer_name
        if self._mimi is not None and not isinstance(self._mimi, nn.Module) and not speech_tokenizer_name:
            raise ValueError(
                f"the speech tokenizer is a {type(self._mimi).__name__}, whose weights cannot be hashed; name it in speech_tokenizer_name="
            )
        if self._mimi is None and quiet == "silence":
            raise ValueError("quiet='silence' needs encoded silence, and there is no speech tokenizer; pass speech_tokenizer= or quiet='absent'")

    def refusal(self, condition: Condition) -> str | None:
        """Whatever needs speech is refused where no speech tokenizer was given."""
        if self._mimi is None and condition != "t2t":
            return _NO_MIMI
        return None

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Codes ``[F, K]`` from the speech tokenizer.

        Raises:
            TypeError: If there is none.
            ValueError: If the recording is longer than the model's attention reaches, or the model has other streams than the adapter.
        """
        window = self._checked(model).context
        codes = self._codes(waveform)
        self._check_recording(codes, window)
        return codes

    def _codes(self, waveform: Tensor) -> Tensor:
        if self._mimi is None:
            raise TypeError(_NO_MIMI)
        with evaluating(self._mimi):
            codes: Tensor = mimi_codes(self._mimi, waveform, len(self._delays)) if hasattr(self._mimi, "encode") else self._mimi(waveform)
        return codes

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of the speech tokenizer's weights, or its name, and the number of codebooks."""
        known = module_fingerprint(self._mimi) if isinstance(self._mimi, nn.Module) else self._mimi_name
        return f"{known}-{len(self._delays)}"

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """Summed embeddings, transformer, and the text head or the depth transformer; the other is never run.

        Raises:
            NotImplementedError: If the row holds several sequences: the transformer takes no mask; or if the model is conditioned.
            ValueError: If the sequence is longer than the model's attention reaches, or the model has other streams than the adapter.
        """
        if row.segments is not None:
            raise NotImplementedError("the transformer of kyutai's moshi takes no attention mask, so it cannot read several sequences in one row")
        live = self._checked(model)
        self._check_row(row, live.context)
        ids = self._ids(row, live.text_initial_token_id, live.initial_token_id, lambda: self._silence(row.streams.device))
        # Its embeddings take -1 for nothing.
        hidden = sum(table(of_stream) for table, of_stream in zip([live.text_emb, *live.emb], ids, strict=True))
        states = live.transformer(hidden.unsqueeze(0))
        states = (live.out_norm(states) if live.out_norm else states)[0][row.sources]
        if not row.asks_other_heads:
            logits: Tensor = live.text_linear(states)
            return logits
        return self._depth_logits(live, states, row)

    def _depth_logits(self, model: Any, states: Tensor, row: Row) -> Tensor:
        """``[A, V]``: the codebooks of a frame one after another, given the text PAD and the codes before."""
        ids = nn.functional.pad(self._spoken_before(row), (1, 0), value=self._pad)
        inputs = []
        schedule = model.depformer_weights_per_step_schedule or range(model.dep_q)
        for codebook, of_codebook in enumerate(ids.unbind(1)):
            project = model.depformer_in[schedule[codebook] if model.depformer_multi_linear else 0]
            table = model.depformer_emb[codebook - 1] if codebook else model.depformer_text_emb
            inputs.append(table(of_codebook) + project(states))
        outputs = model.depformer(torch.stack(inputs, dim=1)).unbind(1)
        by_codebook = torch.stack(
            [head(norm(output)) for head, norm, output in zip(model.linears, model.depformer_norms, outputs, strict=False)], dim=1
        )
        return by_codebook[torch.arange(len(ids), device=ids.device), row.heads - 1]

    def _silence(self, device: torch.device) -> Tensor:
        return self._codes(torch.zeros(int(self._sample_rate / _FRAMES_PER_SECOND), device=device))[0].to(device)

    def _checked(self, model: Any) -> Any:
        found, expected = list(model.delays), [0, *self._delays, *self._delays]
        if found != expected or model.dep_q != len(self._delays):
            raise ValueError(
                f"{type(model).__name__} has delays {found} and speaks {model.dep_q} codebooks, and the adapter was built for {expected} and "
                f"{len(self._delays)}; pass delays={found[1 : 1 + model.dep_q]} if both speakers have those"
            )
        if model.text_padding_token_id != self._pad:
            raise ValueError(f"{type(model).__name__} pads its text with {model.text_padding_token_id}; pass text_pad={model.text_padding_token_id}")
        if model.fuser is not None:
            raise NotImplementedError(f"{type(model).__name__} is conditioned (it has a fuser), and this adapter gives no conditions")
        return model

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Whole modules for every role; what is neither embedding nor head is body."""
        live = cast(Any, model)
        depth = [getattr(live, f"depformer{part}", None) for part in ("", "_in", "_emb", "_text_emb", "_norms")]
        body = [getattr(live, part, None) for part in ("transformer", "out_norm", "extra_heads", "condition_provider", "fuser")]
        return {
            "audio_embedding": prefixes(model, [live.emb]),
            "audio_head": prefixes(model, [*depth, live.linears]),
            "lm_embedding": prefixes(model, [live.text_emb]),
            "lm_head": prefixes(model, [live.text_linear]),
            "lm_body": prefixes(model, body),
        }

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizer, speech tokenizer and every choice of the layout."""
        name = self._mimi_name or ("none" if self._mimi is None else type(self._mimi).__name__)
        return {"adapter": "kyutai_moshi", **super().signature(), "speech_tokenizer": name}
