"""GLM-4-Voice, SpiritLM, slamkit's models and TWIST: where each puts audio tokens, brackets and prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from torch import Tensor, nn

from s2sbench_callback.adapters.protocol import Row
from s2sbench_callback.adapters.speech_units import SpeechUnits
from s2sbench_callback.adapters.text_ids import TextIds
from s2sbench_callback.adapters.vocabulary_tokens import Layout, ScoredOver, VocabularyTokens, named_audio_tokens
from s2sbench_callback.prompts import Condition

_CHAT_IS_WRITTEN = (
    "in the chat layout a reply begins with text, 13 tokens of it before 26 of audio, so it has no place for speech alone; pass layout='base'"
)


class GLM4Voice(VocabularyTokens):
    r"""Reads GLM-4-Voice, as ``GlmForCausalLM`` of ``transformers`` or in its own remote class.

    Layout ``base``: ``[gMASK]<sop>``, then text as it is and speech as ``<|begin_of_audio|>``, ``<|audio_N|>`` for each unit, ``<|end_of_audio|>``,
    then the candidate; no end token. A spoken candidate goes on with the audio of a spoken context, before any ``<|end_of_audio|>``
    (``speech_continues=False``: after one and a further ``<|begin_of_audio|>``), or follows ``<|begin_of_audio|>`` after text. Layout ``chat``:
    ``[gMASK]<sop>``, ``<|system|>\n`` and ``system_prompt`` where there is one, ``<|user|>\n``, the context in its brackets,
    ``<|assistant|>streaming_transcription\n``, then the written candidate; spoken ones are refused.

    The two first tokens are the BOS policy: they always stand there. Spacing is the release's. One codebook at 12.5 Hz, from 16 kHz.

    The remote class (``transformer.encoder``, ``transformer.output_layer``) is fed with ids; with its ``flash_attention_2`` it cannot read packed
    rows, and says so. Its rotary table has ``seq_length`` places, which no sequence may exceed.

    The layouts are read off a public fine-tuning project and the model's special tokens, and are **unverified against the published evaluation**,
    which is not public. The remote forward was compared with that project's copy of the class.

    Args:
        tokenizer: The checkpoint's tokenizer.
        speech_tokenizer: ``waveform [N] -> units``: the checkpoint's ``WhisperVQEncoder`` with its feature extractor in front, in pieces of 30 s.
        speech_tokenizer_name: Its name and version; needed where it is no ``nn.Module``.
        layout: ``base`` for a continuation, ``chat`` for what the chat-tuned checkpoint was tuned on.
        instruction: Whether the paper's instruction stands before a spoken context.
        system_prompt: In the chat layout, what the system says; empty for no such turn.
        speech_continues: Whether a spoken candidate belongs to the same stretch of audio as a spoken context.
        scored_over: What tokens are weighed against: the whole ``vocabulary`` or those of their ``modality``.

    Raises:
        ValueError: If the tokenizer lacks a special token, a choice is none, or the speech tokenizer has no name.
    """

    def __init__(
        self,
        tokenizer: Any,
        speech_tokenizer: Any,
        speech_tokenizer_name: str | None = None,
        layout: Literal["base", "chat"] = "base",
        instruction: bool = False,
        system_prompt: str = "",
        speech_continues: bool = True,
        scored_over: ScoredOver = "vocabulary",
    ) -> None:
        if layout not in ("base", "chat"):
            raise ValueError(f"layout must be 'base' or 'chat', got {layout!r}")
        if system_prompt and layout == "base":
            raise ValueError("system_prompt belongs to layout='chat'; the base layout has no turns")
        text = TextIds(tokenizer)

        def special(token: str) -> int:
            return text.token(token, "tokenizer")

        start, reply = [special("[gMASK]"), special("<sop>")], []
        if layout == "chat":
            if system_prompt:
                start += [special("<|system|>"), *text.encode(f"\n{system_prompt}")]
            start += [special("<|user|>"), *text.encode("\n")]
            reply = [special("<|assistant|>"), *text.encode("streaming_transcription\n")]
        super().__init__(
            "glm4_voice",
            text,
            SpeechUnits(speech_tokenizer, speech_tokenizer_name, deduplicate=False),
            Layout(
                units=named_audio_tokens(tokenizer, "<|audio_{}|>"),
                start=start,
                opens={"speech": [special("<|begin_of_audio|>")]},
                closes={"speech": [special("<|end_of_audio|>")]},
                reply=reply,
                speech_continues=speech_continues,
            ),
            16_000,
            scored_over,
            instruction,
            {"layout": layout, "speech_continues": str(speech_continues).lower(), "verified": "layout unverified against the published evaluation"},
        )

    def refusal(self, condition: Condition) -> str | None:
        """The chat layout refuses spoken candidates."""
        return _CHAT_IS_WRITTEN if self._layout.reply and condition in ("s2s", "t2s") else None

    def _vocabulary_logits(self, model: nn.Module, row: Row) -> Tensor:
        if not _is_chatglm(model):
            return super()._vocabulary_logits(model, row)
        remote: Any = model
        arguments: dict[str, Any] = {"input_ids": row.streams[:, 0].unsqueeze(0), "position_ids": row.positions.unsqueeze(0)}
        mask = row.mask
        if mask is not None:
            if getattr(remote.config, "_attn_implementation", None) == "flash_attention_2":
                raise NotImplementedError(
                    f"{type(model).__name__} takes no mask of several sequences with flash_attention_2; load it with sdpa or eager"
                )
            # True where its attention may not look.
            arguments["full_attention_mask"] = ~mask[None, None]
        states: Tensor = remote.transformer(**arguments, use_cache=False, return_dict=True).last_hidden_state[0]
        logits: Tensor = remote.transformer.output_layer(states[row.sources])
        return logits

    def _matrices(self, model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
        if not _is_chatglm(model):
            return super()._matrices(model)
        remote: Any = model
        return remote.transformer.embedding.word_embeddings, remote.transformer.output_layer


class SpiritLM(VocabularyTokens):
    """Reads SpiritLM, a ``LlamaForCausalLM`` with ``[Hu12]`` for units of speech.

    Layout: BOS, then ``[Text]`` or ``[Speech]`` wherever the modality changes, also before a candidate of another modality than its context; no
    end token. Text carries the tokenizer's own word starts, so the space that T→T puts before a candidate is dropped. The published code begins
    every prompt with BOS.

    The published speech tokenizer gives its tokens as a string (``[Hu78][Hu42]``) and can be passed as it is. Numbers are read as units and
    deduplicated. The expressive model is read in the same way: ``[Pi13]`` and ``[St71]`` in such a string are audio tokens like others, and are
    scored like others in a spoken candidate. 25 Hz, from 16 kHz.

    The layout equals the published code's prompts; real weights were never used.

    Args:
        tokenizer: The checkpoint's ``LlamaTokenizer``.
        speech_tokenizer: ``waveform [N] ->`` a string of tokens, or units.
        speech_tokenizer_name: Its name and version; needed where it is no ``nn.Module``, as the published one is none.
        bos: Whether each sequence begins with BOS.
        instruction: Whether the paper's instruction stands, as text, before a spoken context.
        deduplicate: Whether a unit that repeats counts once.
        scored_over: What tokens are weighed against: the whole ``vocabulary``, or those of their ``modality``, without the prefixes, as the published
            code generates.

    Raises:
        ValueError: If the tokenizer lacks a token or the speech tokenizer has no name.
    """

    def __init__(
        self,
        tokenizer: Any,
        speech_tokenizer: Any,
        speech_tokenizer_name: str | None = None,
        bos: bool = True,
        instruction: bool = False,
        deduplicate: bool = True,
        scored_over: ScoredOver = "vocabulary",
    ) -> None:
        text = TextIds(tokenizer)
        vocabulary = tokenizer.get_vocab()
        speech_prefix, text_prefix = text.token("[Speech]", "tokenizer"), text.token("[Text]", "tokenizer")
        expressive = {name: index for name, index in vocabulary.items() if name[:3] in ("[Pi", "[St") and name[3:-1].isdecimal() and name[-1] == "]"}
        super().__init__(
            "spirit_lm",
            text,
            SpeechUnits(speech_tokenizer, speech_tokenizer_name, deduplicate),
            Layout(
                units=named_audio_tokens(tokenizer, "[Hu{}]"),
                other_audio=expressive,
                start=text.bos(bos),
                opens={"speech": [speech_prefix], "text": [text_prefix]},
                not_written=[speech_prefix, text_prefix],
            ),
            16_000,
            scored_over,
            instruction,
            {"bos": str(bos).lower()},
        )


class UnitLM(VocabularyTokens):
    """Reads slamkit's ``UnitLM``, which holds a causal LM as ``lm``, or that LM alone: ``<Un12>`` for units of speech.

    Layout of a model of text and speech: BOS where the tokenizer itself starts with one, then ``<text>`` or ``<speech>`` wherever the modality
    changes, also before a candidate of another modality than its context; no end token. Spacing is the release's.

    A tokenizer without those two prefixes, or none, makes it a model of speech alone, which is asked S→S as TWIST is: BOS, then units. Without a
    tokenizer BOS is id 1 and unit 0 is id 2, as slamkit's ``UnitTokeniser`` has them by default. 25 Hz deduplicated, from 16 kHz.

    The layout equals the published tokenisers'. The benchmark's figure is not slamkit's own StoryCloze: that one scores prompt and candidate
    together, the end token of speech too, and counts a tie as half.

    Args:
        tokenizer: ``text_tokeniser`` of slamkit's tokeniser; ``None`` for a model of speech alone.
        speech_tokenizer: ``waveform [N] -> units``.
        speech_tokenizer_name: Its name and version; needed where it is no ``nn.Module``.
        bos: Whether each sequence begins with BOS; by default where the tokenizer itself puts one, and always without a tokenizer.
        instruction: Whether the paper's instruction stands, as text, before a spoken context.
        deduplicate: Whether a unit that repeats counts once.
        scored_over: What tokens are weighed against: the whole ``vocabulary``, or those of their ``modality``, where spoken ones leave in the
            tokenizer's BOS and EOS. That is slamkit's ``used_token_modality`` where the tokenizer puts no BOS; where it does, slamkit takes the
            BOS for a prefix.
        units: Without a tokenizer, how many units there are.

    Raises:
        ValueError: If the tokenizer has no ``<Un0>``, only one of the prefixes, or no BOS where one is asked for; or if the speech tokenizer has
            no name.
    """

    def __init__(
        self,
        tokenizer: Any,
        speech_tokenizer: Any,
        speech_tokenizer_name: str | None = None,
        bos: bool | None = None,
        instruction: bool = False,
        deduplicate: bool = True,
        scored_over: ScoredOver = "vocabulary",
        units: int = 500,
    ) -> None:
        speech = SpeechUnits(speech_tokenizer, speech_tokenizer_name, deduplicate)
        text: TextIds | None = None
        if tokenizer is None:
            begin = [] if bos is False else [1]
            layout = Layout(units={f"<Un{unit}>": 2 + unit for unit in range(units)}, start=begin)
        else:
            names, known = named_audio_tokens(tokenizer, "<Un{}>"), tokenizer.get_vocab()
            if "<speech>" in known or "<text>" in known:
                text = TextIds(tokenizer)
                begin = text.bos(bos)
                layout = Layout(
                    units=names,
                    start=begin,
                    opens={"speech": [text.token("<speech>", "tokenizer")], "text": [text.token("<text>", "tokenizer")]},
                    also_spoken=[index for index in (tokenizer.bos_token_id, tokenizer.eos_token_id) if index is not None],
                )
            else:
                # slamkit's tokenizer of units declares no BOS, puts <S> there, and cannot read text.
                if bos is not False and "<S>" not in known:
                    raise ValueError(f"the tokenizer {type(tokenizer).__name__} of units has no token '<S>' to begin with; pass bos=False")
                begin = [] if bos is False else [known["<S>"]]
                layout = Layout(units=names, start=begin)
        super().__init__("slamkit_unit_lm", text, speech, layout, 16_000, scored_over, instruction, {"bos": str(bool(begin)).lower()})

    def _vocabulary_logits(self, model: nn.Module, row: Row) -> Tensor:
        # Its own forward computes logits everywhere.
        return super()._vocabulary_logits(cast(nn.Module, getattr(model, "lm", model)), row)


class TWIST(VocabularyTokens):
    """Reads TWIST, an OPT or a Llama over units of speech alone: S→S; whatever has text in it is refused.

    Layout: units and nothing else, each as ``unit + offset``; no BOS, no end token, deduplicated; mHuBERT at 25 Hz in 500 clusters, from 16 kHz.
    Where a set has whole spoken stories alone the first unit of each is given and not scored.

    The layout equals the published generation code's; real weights were never used, and how the paper's figure was made is not published.

    Args:
        speech_tokenizer: ``waveform [N] -> units``, or a mapping that has them under ``units``, as textlesslib's ``SpeechEncoder`` gives.
        speech_tokenizer_name: Its name and version; needed where it is no ``nn.Module``.
        offset: Id of unit 0; by default ``offset`` in the model's configuration.
        units: How many there are.
        deduplicate: Whether a unit that repeats counts once.
        scored_over: What units are weighed against: the whole ``vocabulary``, or units alone (``modality``).

    Raises:
        ValueError: If the speech tokenizer has no name.
    """

    def __init__(
        self,
        speech_tokenizer: Any,
        speech_tokenizer_name: str | None = None,
        offset: int | None = None,
        units: int = 500,
        deduplicate: bool = True,
        scored_over: ScoredOver = "vocabulary",
    ) -> None:
        speech = SpeechUnits(speech_tokenizer, speech_tokenizer_name, deduplicate)
        self._offset, self._units = offset, units
        choices = {"offset": "the model's" if offset is None else str(offset)}
        super().__init__("twist", None, speech, Layout(), 16_000, scored_over, False, choices)

    def _unit_ids(self, model: nn.Module) -> Sequence[int]:
        offset = getattr(getattr(model, "config", None), "offset", None) if self._offset is None else self._offset
        if offset is None:
            raise ValueError(f"the configuration of {type(model).__name__} has no offset, where the ids of TWIST's units begin; pass offset=")
        return range(int(offset), int(offset) + self._units)


def _is_chatglm(model: nn.Module) -> bool:
    """Whether it is the remote class: its head is inside its body."""
    return hasattr(getattr(model, "transformer", None), "output_layer")
