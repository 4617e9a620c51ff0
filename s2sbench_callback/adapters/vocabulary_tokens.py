"""Speech LMs whose audio tokens are rows of the LM's own vocabulary: what all of them share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from s2sbench_callback.adapters.attention import causal_lm_logits
from s2sbench_callback.adapters.protocol import Candidate, Role, Row, Rows
from s2sbench_callback.adapters.speech_units import SpeechUnits
from s2sbench_callback.adapters.text_ids import TextIds, column, text_candidate
from s2sbench_callback.items import Language
from s2sbench_callback.parameter_names import named_parameters
from s2sbench_callback.prompts import Condition, Modality, paper_instruction

ScoredOver = Literal["vocabulary", "modality"]

_UNITS_ONLY = "a model of speech units alone has no text tokens, so neither its context nor its candidates can be written"


@dataclass(frozen=True)
class Layout:
    """How a sequence is put together, in ids.

    Attributes:
        units: Id of each audio token by its name, in the order of the units that the speech tokenizer gives.
        other_audio: Audio tokens that are no such unit, by name.
        start: What every sequence begins with.
        opens: What stands before a stretch of text or of speech.
        closes: What stands after it.
        reply: What stands between context and candidate in place of what opens one.
        speech_continues: Whether speech after speech is one stretch.
        also_spoken: Tokens besides audio that a spoken candidate is weighed against, where only its modality counts.
        not_written: Tokens besides audio that a written candidate is not weighed against, where only its modality counts.
    """

    units: Mapping[str, int] = field(default_factory=dict)
    other_audio: Mapping[str, int] = field(default_factory=dict)
    start: Sequence[int] = ()
    opens: Mapping[Modality, Sequence[int]] = field(default_factory=dict)
    closes: Mapping[Modality, Sequence[int]] = field(default_factory=dict)
    reply: Sequence[int] = ()
    speech_continues: bool = True
    also_spoken: Sequence[int] = ()
    not_written: Sequence[int] = ()

    def context(self, parts: Sequence[list[int] | Tensor], candidate: Modality) -> list[int]:
        """Ids of a context and of what opens a candidate.

        Args:
            parts: Text ids and audio ids ``[F, 1]``.
            candidate: What will follow.
        """
        ids = list(self.start)
        before: Modality | None = None
        for part in parts:
            modality: Modality = "speech" if isinstance(part, Tensor) else "text"
            ids.extend(self._border(before, modality))
            ids.extend(part.flatten().tolist() if isinstance(part, Tensor) else part)
            before = modality
        if self.reply:
            return [*ids, *(self.closes.get(before, ()) if before else ()), *self.reply]
        return [*ids, *self._border(before, candidate)]

    def _border(self, before: Modality | None, after: Modality) -> list[int]:
        if before == after and (before == "text" or self.speech_continues):
            return []
        return [*(self.closes.get(before, ()) if before else ()), *self.opens.get(after, ())]


class VocabularyTokens:
    """Reads a causal LM whose audio tokens are tokens among the others: one stream of ids, one head.

    Of a spoken candidate the audio tokens are scored, never the brackets or prefixes around them. Context and candidate are tokenised apart,
    so that a unit which ends one and begins the other counts in both.

    Args:
        name: Of the adapter, for the signature.
        text: Tokenizer of text, ``None`` for a model of units alone.
        speech: Tokenizer of speech.
        layout: How a sequence is put together.
        sample_rate: Rate in Hz that the speech tokenizer expects.
        scored_over: What a candidate's tokens are weighed against: the whole ``vocabulary``, or the tokens of its own ``modality`` alone.
        instruction: Whether the paper's instruction stands before a spoken context.
        choices: Further entries of the signature.

    Raises:
        ValueError: If ``scored_over`` is neither.
    """

    def __init__(
        self,
        name: str,
        text: TextIds | None,
        speech: SpeechUnits,
        layout: Layout,
        sample_rate: int,
        scored_over: ScoredOver,
        instruction: bool,
        choices: Mapping[str, str],
    ) -> None:
        if scored_over not in ("vocabulary", "modality"):
            raise ValueError(f"scored_over must be 'vocabulary' or 'modality', got {scored_over!r}")
        self._name, self._text, self._speech, self._layout = name, text, speech, layout
        self._sample_rate, self._scored_over, self._instruction, self._choices = sample_rate, scored_over, instruction, choices

    @property
    def tokenizer(self) -> Any:
        """The text tokenizer, ``None`` for a model of units alone."""
        return self._text and self._text.tokenizer

    @property
    def sample_rate(self) -> int:
        """Rate in Hz that the speech tokenizer expects."""
        return self._sample_rate

    def refusal(self, condition: Condition) -> str | None:
        """A model of units alone has spoken contexts and candidates only."""
        return _UNITS_ONLY if self._text is None and condition != "s2s" else None

    def instruction(self, condition: Condition, language: Language) -> str:
        """The paper's where it is asked for, else none."""
        return paper_instruction(condition, language) if self._instruction else ""

    def encode_text(self, text: str) -> list[int]:
        """Ids without special tokens."""
        if self._text is None:
            raise TypeError(_UNITS_ONLY)
        return self._text.encode(text)

    def encode_audio(self, model: nn.Module, waveform: Tensor) -> Tensor:
        """Audio tokens ``[F, 1]`` as ids of the vocabulary."""
        heard = self._speech(waveform)
        if isinstance(heard, list):
            known = {**self._layout.units, **self._layout.other_audio}
            unknown = [name for name in heard if name not in known]
            if unknown:
                raise ValueError(f"the speech tokenizer gave the token {unknown[0]!r}, which is no audio token of {self._name}")
            return column([known[name] for name in heard])
        ids = self._unit_ids(model)
        wrong = heard[(heard < 0) | (heard >= len(ids))]
        if len(wrong):
            raise ValueError(f"the speech tokenizer gave unit {int(wrong[0])}, and {self._name} has audio tokens for units 0 to {len(ids) - 1}")
        return torch.tensor(ids, device=heard.device)[heard].unsqueeze(1)

    def audio_fingerprint(self, model: nn.Module) -> str:
        """Hash of the speech tokenizer and of the ids that its units have."""
        return hashlib.blake2b(f"{self._speech.fingerprint()} {_runs(self._audio_ids(model))}".encode(), digest_size=8).hexdigest()

    def context_streams(self, parts: Sequence[list[int] | Tensor], candidate: Modality = "text") -> Tensor:
        """One stream of ids ``[L, 1]``; ``L`` may be 0 for a model of units that has no BOS."""
        if self._text is None and (candidate == "text" or not all(isinstance(part, Tensor) for part in parts)):
            raise TypeError(_UNITS_ONLY)
        return column(self._layout.context(parts, candidate))

    def candidate_positions(self, piece: list[int] | Tensor) -> Candidate:
        """One stream of ids ``[n, 1]``, each of them scored."""
        if isinstance(piece, Tensor):
            return Candidate(piece, piece)
        if self._text is None:
            raise TypeError(_UNITS_ONLY)
        return text_candidate(piece)

    def logits(self, model: nn.Module, row: Row) -> Tensor:
        """The model's own forward, which computes logits at the asked positions alone."""
        logits = self._vocabulary_logits(model, row)
        if self._scored_over == "vocabulary":
            return logits
        # Slices, since a list of ids would have to be waited for.
        audio = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        for start, stop in _runs(self._audio_ids(model)):
            audio[start:stop] = True
        spoken, written = audio.clone(), ~audio
        for index in self._layout.also_spoken:
            spoken[index] = True
        for index in self._layout.not_written:
            written[index] = False
        return logits.masked_fill(~torch.where(audio[row.targets][:, None], spoken, written), -torch.inf)

    def roles(self, model: nn.Module) -> Mapping[Role, tuple[str | Rows, ...]]:
        """Rows of the embedding and of the head by what they stand for, the rest as the body.

        A tied matrix stands under the embedding's roles alone. What PEFT puts around a matrix and is no row of it counts as text's. Of a model of
        units alone both matrices are audio's as a whole.

        Raises:
            ValueError: If the embedding has no row for some audio token.
        """
        parameters = named_parameters(model)
        roles: dict[Role, list[str | Rows]] = {"audio_embedding": [], "audio_head": [], "lm_embedding": [], "lm_head": [], "lm_body": []}
        taken: set[int] = set()
        audio_runs = _runs(self._audio_ids(model))
        sides: tuple[tuple[Role, Role], ...] = (("audio_embedding", "lm_embedding"), ("audio_head", "lm_head"))
        for (audio, text), module in zip(sides, self._matrices(model), strict=True):
            own = {id(parameter) for parameter in module.parameters()} - taken if module is not None else set()
            of_module = {name: parameter for name, parameter in parameters.items() if id(parameter) in own}
            taken |= own
            height = max((parameter.shape[0] for name, parameter in of_module.items() if name.endswith("weight")), default=0)
            if height and audio_runs and audio_runs[-1][1] > height:
                raise ValueError(
                    f"audio tokens go up to id {audio_runs[-1][1] - 1}, and {next(iter(of_module))} of {type(model).__name__} has {height} rows; "
                    "is this the model's own tokenizer, and was resize_token_embeddings called?"
                )
            for name, parameter in of_module.items():
                if self._text is None:
                    roles[audio].append(name)
                elif not name.endswith(("weight", "bias")) or parameter.shape[0] != height:
                    roles[text].append(name)
                elif id(parameter) in own:
                    own.remove(id(parameter))
                    roles[audio].extend(Rows(name, start, stop) for start, stop in audio_runs)
                    roles[text].extend(Rows(name, start, stop) for start, stop in _gaps(audio_runs, height))
        roles["lm_body"].extend(_prefixes([*parameters], {name for name, parameter in parameters.items() if id(parameter) in taken}))
        return {role: tuple(entries) for role, entries in roles.items() if entries}

    def signature(self) -> Mapping[str, str]:
        """Adapter, tokenizers, layout, and what a candidate is weighed against."""
        return {
            "adapter": self._name,
            **(self._text.signature() if self._text else {"tokenizer": "none"}),
            **self._speech.signature(),
            "sample_rate": str(self._sample_rate),
            "start": ",".join(map(str, self._layout.start)) or "none",
            "instruction": "paper" if self._instruction else "none",
            "scored": "audio tokens" if self._text is None else "text tokens, audio tokens",
            "scored_over": self._scored_over,
            **self._choices,
        }

    def _unit_ids(self, model: nn.Module) -> Sequence[int]:
        """Id of each unit."""
        return [*self._layout.units.values()]

    def _audio_ids(self, model: nn.Module) -> Sequence[int]:
        return [*self._unit_ids(model), *self._layout.other_audio.values()]

    def _vocabulary_logits(self, model: nn.Module, row: Row) -> Tensor:
        return causal_lm_logits(model, row)

    def _matrices(self, model: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
        """The modules of embedding and head."""
        language_model = cast(PreTrainedModel, model)
        return language_model.get_input_embeddings(), language_model.get_output_embeddings()


def named_audio_tokens(tokenizer: Any, pattern: str) -> dict[str, int]:
    """Audio tokens of a tokenizer, numbered from 0.

    Args:
        tokenizer: A tokenizer of ``transformers``; it need not be able to read text.
        pattern: Name of a token with ``{}`` for its number.

    Returns:
        Id by name, in the order of the numbers.

    Raises:
        ValueError: If the tokenizer does not know number 0.
    """
    vocabulary = tokenizer.get_vocab()
    tokens: dict[str, int] = {}
    while (name := pattern.format(len(tokens))) in vocabulary:
        tokens[name] = vocabulary[name]
    if not tokens:
        raise ValueError(f"the tokenizer {type(tokenizer).__name__} has no token {name!r}; pass the model's own in tokenizer=")
    return tokens


def _runs(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ids as ranges ``[start, stop)``, lowest first."""
    runs: list[tuple[int, int]] = []
    for index in sorted(set(ids)):
        if runs and runs[-1][1] == index:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _gaps(runs: Sequence[tuple[int, int]], height: int) -> list[tuple[int, int]]:
    edges = [0, *(edge for run in runs for edge in run), height]
    return [(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _prefixes(names: Sequence[str], without: set[str], prefix: str = "") -> list[str]:
    """The shortest prefixes, at dots, that cover all names but some."""
    found: list[str] = []
    for head in dict.fromkeys(name[len(prefix) :].split(".")[0] for name in names):
        branch = [name for name in names if name == prefix + head or name.startswith(f"{prefix}{head}.")]
        if branch == [prefix + head]:
            found.extend(name for name in branch if name not in without)
        elif without.isdisjoint(branch):
            found.append(f"{prefix}{head}.")
        else:
            found.extend(_prefixes(branch, without, f"{prefix}{head}."))
    return found
