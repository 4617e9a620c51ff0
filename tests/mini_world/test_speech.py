from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from s2sbench_callback import Benchmark, mini
from s2sbench_callback.adapters.speech_units import SpeechUnits
from s2sbench_callback.items import Audio, recording_digest
from s2sbench_callback.mini_world.corpus import training_corpus
from s2sbench_callback.mini_world.speech_tokenizer import FRAME_RATE_HZ, SAMPLE_RATE, SpeechTokenizer
from s2sbench_callback.mini_world.voice import Voice
from s2sbench_callback.speech import AudioTokenCache, load_waveform


def noise(seconds: float, seed: int) -> torch.Tensor:
    return torch.randn(int(SAMPLE_RATE * seconds), generator=torch.Generator().manual_seed(seed)) * 0.1


def fitted() -> SpeechTokenizer:
    tokenizer = SpeechTokenizer((16, 8))
    tokenizer.fit([noise(2.0, seed) for seed in range(4)])
    return tokenizer


def test_codes_have_the_stated_rate_and_range() -> None:
    tokenizer = fitted()
    codes = tokenizer(noise(1.6, 9))
    assert codes.shape == (1.6 * FRAME_RATE_HZ, 2)
    assert len(tokenizer(noise(1.61, 9))) == 21
    assert ((codes >= 0) & (codes < torch.tensor([16, 8]))).all()


def test_codes_are_the_nearest_centroids() -> None:
    tokenizer = fitted()
    waveform = noise(0.8, 5)
    residual = (tokenizer.frames(waveform) - tokenizer.mean) @ tokenizer.projection
    for frame, codes in zip(residual, tokenizer(waveform), strict=True):
        for level, code in enumerate(codes.tolist()):
            codebook = tokenizer.get_buffer(f"codebook_{level}")
            distances = [float(((frame - centroid) ** 2).sum()) for centroid in codebook]
            assert distances[code] == pytest.approx(min(distances), rel=1e-4)
            frame = frame - codebook[code]


def test_each_level_leaves_less_over() -> None:
    tokenizer = fitted()
    residual = (torch.cat([tokenizer.frames(noise(2.0, seed)) for seed in range(4)]) - tokenizer.mean) @ tokenizer.projection
    first = residual - tokenizer.codebook_0[torch.cdist(residual, tokenizer.codebook_0).argmin(1)]
    second = first - tokenizer.codebook_1[torch.cdist(first, tokenizer.codebook_1).argmin(1)]
    assert residual.square().sum() > first.square().sum() > second.square().sum()


def test_loudness_does_not_change_codes() -> None:
    tokenizer = fitted()
    assert torch.equal(tokenizer(noise(1.0, 3)), tokenizer(noise(1.0, 3) * 0.5))


def test_autocast_does_not_change_codes() -> None:
    tokenizer = fitted()
    expected = tokenizer(noise(20.0, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tokenizer(noise(20.0, 3)), expected)


def test_too_little_speech_for_a_codebook() -> None:
    with pytest.raises(ValueError, match="a codebook of 64 entries cannot be learned from 12 frames"):
        SpeechTokenizer((64,)).fit([noise(0.96, 0)])


def test_the_embedded_benchmark_is_whole_and_repeatable(mini_set: Benchmark, cache_dir: Path, tmp_path: Path) -> None:
    again = mini(questions=12, cache_dir=tmp_path)
    assert again.fingerprint == mini_set.fingerprint
    assert (mini_set.name, mini_set.language, mini_set.tie_rule, len(mini_set.items)) == ("mini", "en", "lose", 12)
    for item in mini_set.items:
        assert item.contexts[0] == item.contexts[1]
        audio = item.contexts[0].audio
        assert audio is not None
        assert 3.0 < audio.seconds < 12.0
        samples, rate = soundfile.read(audio.path)
        assert rate == 24_000
        assert 0.05 < np.abs(samples).max() <= 1.0
    assert len([path for path in cache_dir.glob("mini-*") if not path.name.endswith("-endings")]) == 1


def test_the_default_benchmark_has_two_hundred_questions_and_more() -> None:
    assert inspect.signature(mini).parameters["questions"].default >= 200


def test_speech_is_repeatable_and_seeds_differ() -> None:
    voice = Voice()
    text = "It rained all day."
    assert np.array_equal(voice.speak_at_random_speed(text, 3), voice.speak_at_random_speed(text, 3))
    assert len({voice.speak_at_random_speed(text, seed).tobytes() for seed in range(5)}) == 5
    assert len({len(voice.speak_at_random_speed(text, seed)) for seed in range(5)}) > 2


def test_no_training_waveform_is_a_waveform_of_the_probe(mini_set: Benchmark, cache_dir: Path) -> None:
    """The probe's recordings start like no training sentence does."""
    corpus = training_corpus(1, cache_dir)
    heads = {piece[1_000:1_200].numpy().tobytes() for piece in corpus.waveforms.values()}
    for item in mini_set.items:
        audio = item.contexts[0].audio
        assert audio is not None
        spoken = (load_waveform(audio, SAMPLE_RATE) * 32_767).round().to(torch.int16)
        assert spoken[1_000:1_200].numpy().tobytes() not in heads


def test_corpus_needs_a_rendering(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="renderings must be at least 1, got 0"):
        training_corpus(0, tmp_path)


def write(path: Path, samples: np.ndarray, rate: int) -> Audio:
    soundfile.write(path, samples, rate)
    return Audio(path, recording_digest(path.read_bytes()), len(samples) / rate)


@pytest.mark.parametrize("ending", ["wav", "flac"])
def test_waveforms_are_mono_at_the_asked_rate(tmp_path: Path, ending: str) -> None:
    time = np.arange(24_000) / 24_000
    left, right = np.sin(2 * np.pi * 440 * time) * 0.4, np.zeros(24_000)
    waveform = load_waveform(write(tmp_path / f"a.{ending}", np.stack([left, right], 1), 24_000), 16_000)
    assert (waveform.shape, waveform.dtype) == ((16_000,), torch.float32)
    expected = 0.2 * torch.sin(2 * torch.pi * 440 * torch.arange(16_000) / 16_000)
    torch.testing.assert_close(waveform[500:-500], expected[500:-500], atol=2e-3, rtol=0)


def test_a_recording_that_changed_after_setup_is_named(tmp_path: Path) -> None:
    audio = write(tmp_path / "a.wav", np.zeros(100), 16_000)
    soundfile.write(audio.path, np.ones(100), 16_000)
    with pytest.raises(ValueError, match=r"a\.wav: this recording has changed since setup"):
        load_waveform(audio, 16_000)
    audio.path.unlink()
    with pytest.raises(ValueError, match=r"a\.wav: this recording was readable at setup and cannot be read now"):
        load_waveform(audio, 16_000)


def test_codes_are_kept_by_recording_and_speech_tokenizer(tmp_path: Path) -> None:
    first, twin, other, heard = (Audio(Path(f"{name}.wav"), digest, 1.0) for name, digest in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")))
    cache = AudioTokenCache(tmp_path)
    cache.use("v1", on_disk=True)
    assert first not in cache
    cache.put(first, torch.ones(3, 2, dtype=torch.int32))
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    cache.put(heard, features)
    assert twin in cache
    assert other not in cache
    assert cache.get(twin).dtype == torch.int64
    cache.use("v2", on_disk=True)
    assert first not in cache

    later = AudioTokenCache(tmp_path)
    later.use("v1", on_disk=True)
    assert first in later
    assert torch.equal(later.get(first), torch.ones(3, 2, dtype=torch.int64))
    # Features keep their own precision.
    assert heard in later
    torch.testing.assert_close(later.get(heard), features, rtol=0, atol=0)
    assert not list(tmp_path.rglob("*.partial"))


def test_codes_of_a_front_end_that_learns_never_reach_the_disk(tmp_path: Path) -> None:
    audio = Audio(Path("a.wav"), "x", 1.0)
    cache = AudioTokenCache(tmp_path)
    cache.use("v1", on_disk=False)
    cache.put(audio, torch.ones(3, 2))
    assert audio in cache
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_to_costs_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = AudioTokenCache(tmp_path / "file")
    cache.use("v1", on_disk=True)
    with pytest.warns(UserWarning, match="audio tokens are kept in memory alone"):
        cache.put(Audio(Path("a.wav"), "x", 1.0), torch.ones(3, 2))
    assert Audio(Path("a.wav"), "x", 1.0) in cache


def test_a_damaged_file_of_the_cache_is_made_again(tmp_path: Path) -> None:
    audio = Audio(Path("a.wav"), "x", 1.0)
    cache = AudioTokenCache(tmp_path)
    cache.use("v1", on_disk=True)
    cache.put(audio, torch.ones(3, 2))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(b"")
    later = AudioTokenCache(tmp_path)
    later.use("v1", on_disk=True)
    assert audio not in later


def test_a_speech_tokenizer_beside_the_model_hears_in_evaluation_mode() -> None:
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, waveform: torch.Tensor) -> torch.Tensor:
            return self.dropout(waveform).long()

    tokenizer = Dropping()
    assert torch.equal(SpeechUnits(tokenizer, None, deduplicate=False)(torch.ones(64)), torch.ones(64, dtype=torch.int64))
    assert tokenizer.dropout.training
