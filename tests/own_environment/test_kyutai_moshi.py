"""Moshi of kyutai's own package, whose forward makes initial tokens and delays itself; its environment is that of requirements/moshi.txt."""

from __future__ import annotations

import os
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("moshi", reason="kyutai's moshi has an environment of its own")
# Its norms would be compiled, which takes longer than all of this.
os.environ["NO_TORCH_COMPILE"] = "1"

import contract
import sentencepiece
from contract import System, check_all, losses, spoken_set
from moshi.models.lm import LMModel
from moshi.models.loaders import _mimi_config, get_mimi

from s2sbench_callback.adapters.moshi import KyutaiMoshi
from s2sbench_callback.adapters.protocol import Row
from s2sbench_callback.packing import EncodedCandidate, Unit, build_row

K, PAD, CARD = 4, 3, 16
TEXTS = ["It rained all day.", "The cat sat on the mat.", "He lost his keys.", "He was very dry indeed.", "It flew to the moon.", "She ate it."]


@pytest.fixture(scope="session")
def tokenizer() -> sentencepiece.SentencePieceProcessor:
    # Ids as Moshi's: 3 is PAD.
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5), model_writer=model, vocab_size=60, pad_id=PAD, hard_vocab_limit=False, minloglevel=2
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def tiny_lm(text_card: int, **changes: Any) -> LMModel:
    torch.manual_seed(0)
    arguments: dict[str, Any] = {
        "delays": [0, *[0, 1, 1, 1] * 2],
        "n_q": 2 * K,
        "dep_q": K,
        "card": CARD,
        "text_card": text_card,
        "dim": 32,
        "num_heads": 4,
        "num_layers": 2,
        "hidden_scale": 4.125,
        "norm": "rms_norm_f32",
        "gating": "silu",
        "positional_embedding": "rope",
        "context": 128,
        "layer_scale": None,
        "depformer_dim": 16,
        "depformer_dim_feedforward": 64,
        "depformer_num_heads": 2,
        "depformer_num_layers": 2,
        "depformer_layer_scale": None,
        "depformer_multi_linear": True,
        "depformer_context": K,
        "depformer_gating": "silu",
        "depformer_pos_emb": "none",
        "depformer_weights_per_step": True,
    }
    return LMModel(**arguments | changes).eval()


def tiny_mimi() -> nn.Module:
    torch.manual_seed(0)
    config = {
        **_mimi_config,
        "seanet": {**_mimi_config["seanet"], "dimension": 16, "n_filters": 2},
        "quantizer": {**_mimi_config["quantizer"], "dimension": 8, "bins": CARD, "n_q": 6, "input_dimension": 16, "output_dimension": 16},
        "transformer": {
            **_mimi_config["transformer"],
            **{"d_model": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "input_dimension": 16, "output_dimensions": [16]},
        },
    }
    mimi = get_mimi(None, config, num_codebooks=6).eval()
    for name, buffer in mimi.named_buffers():
        if name.endswith("embedding_sum"):
            buffer.normal_(std=0.01)
    return mimi


class QuickCodes(nn.Module):
    """A speech tokenizer that takes no time: the first dimensions of each frame, cut into steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.linspace(-0.2, 0.2, CARD - 1))

    def forward(self, waveform: Tensor) -> Tensor:
        frames = nn.functional.pad(waveform, (0, -len(waveform) % 1920)).view(-1, 1920)
        return torch.bucketize(frames[:, :K].contiguous(), self.steps)


def tiny_system(tokenizer: Any, changes: dict[str, Any] | None = None, **arguments: Any) -> System:
    arguments = {"delays": (0, 1, 1, 1), "speech_tokenizer": QuickCodes()} | arguments
    model = tiny_lm(tokenizer.get_piece_size(), **changes or {})
    return System(model, KyutaiMoshi(tokenizer, **arguments), ("s2t", "t2t", "s2s", "t2s"))


def some_codes(frames: int, seed: int = 1) -> Tensor:
    return torch.randint(0, CARD, (frames, K), generator=torch.Generator().manual_seed(seed))


def own_codes(text: list[int], moshi: Tensor, user: Tensor) -> Tensor:
    """What ``LMModel.forward`` takes: ``[1, 1 + 2 K, T]``, neither shifted nor delayed, -1 where there is nothing."""
    return torch.cat([torch.tensor(text)[:, None], moshi, user], dim=1).T[None]


def row_of(adapter: KyutaiMoshi, parts: list[list[int] | Tensor], candidate: list[int] | Tensor) -> Row:
    streams, targets = adapter.candidate_positions(candidate)
    return build_row((Unit(adapter.context_streams(parts), (EncodedCandidate(0, 0, streams, targets),)),)).row


def nothing(frames: int) -> Tensor:
    return torch.full((frames, K), -1)


@pytest.mark.parametrize("choices", [{}, {"scored": "all", "flush_frames": 0, "quiet": "silence"}])
def test_kyutais_moshi_keeps_the_contract_in_plain_rows(
    choices: dict[str, Any], tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plainly = partial(losses, packed=False)
    monkeypatch.setattr(contract, "losses", lambda *arguments, packed=False, max_tokens=512: plainly(*arguments))
    check_all(lambda: tiny_system(tokenizer, **choices), tmp_path)


def test_packed_rows_are_refused_and_the_engine_goes_on_without(tokenizer: Any, tmp_path: Path) -> None:
    system, benchmark = tiny_system(tokenizer), spoken_set(tmp_path)
    with pytest.raises(UserWarning, match=r"cannot read a packed row .*takes no attention mask"):
        losses(system, benchmark, "s2t")


@torch.no_grad()
@pytest.mark.parametrize("channel", ["user", "moshi"])
@pytest.mark.parametrize("quiet", ["absent", "silence"])
def test_scored_text_has_the_logits_of_the_models_own_forward(quiet: str, channel: str, tokenizer: Any) -> None:
    system = tiny_system(tokenizer, quiet=quiet, speech_channel=channel, speech_tokenizer=tiny_mimi())
    codes, candidate = some_codes(6), [7, 9, 5, 11]
    still = torch.full((K,), -1) if quiet == "absent" else tiny_mimi().encode(torch.zeros(1, 1, 1920))[0, :K, 0]
    channels = {"moshi": still.repeat(11, 1), "user": still.repeat(11, 1)} | {channel: torch.cat([codes, still.repeat(5, 1)])}
    output = system.model(own_codes([PAD] * 7 + candidate, channels["moshi"], channels["user"]))
    row = row_of(system.adapter, [codes], candidate)
    assert row.targets.tolist() == candidate
    # Its logits at a frame are about that frame.
    torch.testing.assert_close(system.adapter.logits(system.model, row), output.text_logits[0, 0, 7:11], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_scored_text_after_a_written_context(tokenizer: Any) -> None:
    system = tiny_system(tokenizer)
    output = system.model(own_codes([8, 6, 12, 7, 9, 5], nothing(6), nothing(6)))
    row = row_of(system.adapter, [[8, 6, 12]], [7, 9, 5])
    torch.testing.assert_close(system.adapter.logits(system.model, row), output.text_logits[0, 0, 3:6], atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("delays", [(0, 1, 1, 1), (0, 0, 0, 0), (0, 1, 2, 2)])
@pytest.mark.parametrize(
    "changes", [{}, {"depformer_weights_per_step_schedule": [0, 1, 1, 1]}, {"depformer_multi_linear": False}, {"depformer_low_rank_embeddings": 4}]
)
def test_scored_speech_has_the_logits_of_the_models_own_forward(delays: tuple[int, ...], changes: dict[str, Any], tokenizer: Any) -> None:
    system = tiny_system(tokenizer, {"delays": [0, *delays, *delays], **changes}, delays=delays, scored="all")
    context, said = some_codes(5), some_codes(4, seed=2)
    flush = max(delays)
    # Frames after the end, so that the last codes come too; they are not scored.
    user = torch.cat([context, nothing(4 + 2 * flush)])
    moshi = torch.cat([nothing(5 + flush), said, nothing(flush)])
    own = system.model(own_codes([PAD] * (9 + 2 * flush), moshi, user)).logits[0]
    row = row_of(system.adapter, [context], said)
    logits = system.adapter.logits(system.model, row)
    expected, codes = [], []
    for frame in range(4):
        for codebook, delay in enumerate(delays):
            if frame >= delay:
                # It has undone the delays: a code's logits stand at the frame in which it sounds.
                expected.append(own[codebook, 5 + flush + frame - delay])
                codes.append(int(said[frame - delay, codebook]))
    assert row.targets.tolist() == codes
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_with_flush_frames_each_code_of_the_last_frame_is_heard_before_the_first_scored_token(tokenizer: Any) -> None:
    flushed, at_once = tiny_system(tokenizer), tiny_system(tokenizer, flush_frames=0)
    codes = some_codes(4)
    for codebook in range(K):
        changed = codes.clone()
        changed[-1, codebook] = (codes[-1, codebook] + 1) % CARD
        moved = []
        for system in (flushed, at_once):
            one, other = (system.adapter.logits(system.model, row_of(system.adapter, [heard], [7, 9])) for heard in (codes, changed))
            moved.append(((one - other).abs().amax(1) > 1e-6).tolist())
        assert moved == [[True, True], [codebook == 0, True]]


@torch.no_grad()
def test_mimi_is_taken_as_a_module_as_its_method_or_as_any_callable(tokenizer: Any) -> None:
    mimi = tiny_mimi()
    waveform = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 0.1
    expected = mimi.encode(waveform[None, None])[0, :K].T
    assert expected.unique().numel() > 3
    adapters = [
        KyutaiMoshi(tokenizer, mimi, delays=(0, 1, 1, 1)),
        KyutaiMoshi(tokenizer, mimi.encode, delays=(0, 1, 1, 1)),
        KyutaiMoshi(tokenizer, lambda samples: mimi.encode(samples[None, None])[0, :K].T, "by hand", delays=(0, 1, 1, 1)),
    ]
    model = tiny_lm(60)
    for adapter in adapters:
        assert torch.equal(adapter.encode_audio(model, waveform), expected)
    prints = [adapter.audio_fingerprint(model) for adapter in adapters]
    assert prints[0] == prints[1] != prints[2]
    assert adapters[2].signature()["speech_tokenizer"] == "by hand"


def test_sentencepiece_puts_the_word_start_by_itself(tokenizer: Any) -> None:
    adapter = KyutaiMoshi(tokenizer)
    assert adapter.encode_text(" He ate") == adapter.encode_text("He ate") == tokenizer.encode("He ate")
    assert tokenizer.id_to_piece(PAD) == "<pad>"


def test_what_cannot_be_read_is_an_error(tokenizer: Any) -> None:
    system = tiny_system(tokenizer)
    assert len(system.adapter.encode_audio(system.model, torch.zeros(1920 * 126))) == 126
    with pytest.raises(ValueError, match=r"a recording.* takes 129 frames.* reaches back 128"):
        system.adapter.encode_audio(system.model, torch.zeros(1920 * 127))
    with pytest.raises(ValueError, match=r"pass delays=\[0, 1, 1, 1\]"):
        KyutaiMoshi(tokenizer, QuickCodes()).encode_audio(system.model, torch.zeros(1920))
    with pytest.raises(ValueError, match="speech_tokenizer_name="):
        KyutaiMoshi(tokenizer, lambda waveform: waveform)
    with pytest.raises(ValueError, match="quiet='absent'"):
        KyutaiMoshi(tokenizer, quiet="silence")
    with pytest.raises(ValueError, match=r"delays=\[0, 2, 1\] fall"):
        KyutaiMoshi(tokenizer, delays=(0, 2, 1))
    with pytest.raises(ValueError, match="pass text_pad=3"):
        KyutaiMoshi(tokenizer, QuickCodes(), delays=(0, 1, 1, 1), text_pad=4).encode_audio(system.model, torch.zeros(1920))
    deaf = KyutaiMoshi(tokenizer)
    assert deaf.refusal("t2t") is None
    assert all("speech_tokenizer=mimi" in str(deaf.refusal(condition)) for condition in ("s2t", "s2s", "t2s"))


def test_roles_are_whole_modules(tokenizer: Any) -> None:
    system = tiny_system(tokenizer)
    assert system.adapter.roles(system.model) == {
        "audio_embedding": ("emb.",),
        "audio_head": ("depformer.", "depformer_in.", "depformer_emb.", "depformer_text_emb.", "linears."),
        "lm_embedding": ("text_emb.",),
        "lm_head": ("text_linear.",),
        "lm_body": ("transformer.", "out_norm."),
    }
