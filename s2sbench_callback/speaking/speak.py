"""Speaks the texts of a set: in parallel, resumably, and so that the same call gives the same files."""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml
from tqdm.auto import tqdm

from s2sbench_callback.audit.measures import loudness_lufs
from s2sbench_callback.audit.workers import in_processes
from s2sbench_callback.items import Benchmark, Language, recording_digest
from s2sbench_callback.speaking.spoken_rows import Per, Utterance, rows, utterances
from s2sbench_callback.synthesisers import Samples, VoiceSpec, engine_version, open_voice

MANIFEST = "manifest.jsonl"
_HIGHEST_PEAK = 0.99


@dataclass(frozen=True)
class Delivery:
    """How everything is spoken, whatever the voice.

    Attributes:
        sample_rate: Of the files, in Hz.
        loudness_lufs: Of every recording, by ITU-R BS.1770-4; less where a peak would be clipped.
        per: One recording a pair of rows or one a row.
        candidates: Whether candidates are spoken too.
        seed: From which every utterance's own is drawn.
    """

    sample_rate: int = 24_000
    loudness_lufs: float = -23.0
    per: Per = "pair"
    candidates: bool = False
    seed: int = 0


@dataclass(frozen=True)
class _Job:
    """One recording to make, with all that decides its samples."""

    utterance: Utterance
    voice: VoiceSpec
    version: str
    language: Language
    delivery: Delivery
    folder: Path

    @property
    def seed(self) -> int:
        return int.from_bytes(_digest(self.delivery.seed, self.voice.name, self.utterance.key)[:4], "big")

    @property
    def recipe(self) -> str:
        """Hash of it: a file made by another one is made again."""
        content = (
            self.utterance.text,
            asdict(self.voice),
            self.version,
            self.language,
            self.delivery.sample_rate,
            self.delivery.loudness_lufs,
            self.seed,
        )
        return _digest(*content).hex()[:16]

    @property
    def paths(self) -> list[Path]:
        return [self.folder / f"{name}.wav" for name in self.utterance.names]


def speak(
    benchmark: Benchmark, voices: Sequence[VoiceSpec], folder: Path, delivery: Delivery = Delivery(), workers: int = 1, progress: bool = True
) -> dict[str, int]:
    """Makes a spoken set in the release's layout: ``sets.yaml``, ``<set>.jsonl``, and a folder of recordings for each voice.

    What is there already, made from the same text in the same way, is left as it is. Each voice's ``manifest.jsonl`` says of every recording what was
    said by which engine, voice, version and seed, its length, loudness and digest.

    Args:
        benchmark: The written set.
        voices: Who speaks; the set of each is called ``<set>@<voice>``.
        folder: Where to write; sets of other names and voices in it stay.
        delivery: How to speak.
        workers: Processes.
        progress: Whether to draw bars.

    Returns:
        How many recordings were made, by voice.

    Raises:
        FileNotFoundError, ModuleNotFoundError: If an engine, or the file of a voice, is missing.
        ValueError: If two voices have one name, a voice does not speak the language or says nothing, or the folder has another set of that name.
    """
    names = [voice.name for voice in voices]
    if len(set(names)) < len(names):
        raise ValueError(f"two voices have one name: {', '.join(names)}; call one otherwise, as NAME=ENGINE:VOICE")
    jsonl = folder / f"{benchmark.name}.jsonl"
    content = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows(benchmark))
    if jsonl.is_file() and jsonl.read_text(encoding="utf-8") != content:
        raise ValueError(f"{jsonl} holds other questions than those to be spoken; give --output another folder, or delete it")
    for voice in voices:
        open_voice(voice)  # so that what is missing is said before anything is made
    folder.mkdir(parents=True, exist_ok=True)
    _write(jsonl, content)
    made = {}
    for voice in voices:
        made[voice.name] = _speak(benchmark, voice, folder, delivery, workers, progress)
        _name_in_yaml(folder, benchmark, voice, delivery)
    return made


def _speak(benchmark: Benchmark, voice: VoiceSpec, folder: Path, delivery: Delivery, workers: int, progress: bool) -> int:
    version = engine_version(voice)
    base = folder / f"{benchmark.name}@{voice.name}"
    (base / "candidates" if delivery.candidates else base).mkdir(parents=True, exist_ok=True)
    jobs = [
        _Job(each, voice, version, benchmark.language, delivery, base / "candidates" if each.part == "candidate" else base)
        for each in utterances(benchmark, delivery.per, delivery.candidates)
    ]
    records = _read_manifest(base / MANIFEST)
    missing = [job for job in jobs if not _is_made(job, records)]
    bar = tqdm(total=len(jobs), initial=len(jobs) - len(missing), desc=f"{benchmark.name}@{voice.name}", unit="recording", disable=not progress)
    # One line as soon as it is made, so that an interrupted run loses nothing that is whole.
    with bar, (base / MANIFEST).open("a", encoding="utf-8") as stream:
        for job, record in zip(missing, in_processes(_make, missing, workers, chunk=1), strict=True):
            records[job.recipe] = record
            stream.write(f"{json.dumps(record, ensure_ascii=False)}\n")
            stream.flush()
            bar.update()
    _write(base / MANIFEST, "".join(f"{json.dumps(records[job.recipe], ensure_ascii=False)}\n" for job in jobs))
    return len(missing)


def _make(job: _Job) -> dict[str, Any]:
    """Speaks one utterance and writes its files."""
    where = f"{job.folder.name}, {job.utterance.names[0]}"
    samples, rate = open_voice(job.voice)(job.utterance.text, job.language, job.seed)
    if samples.ndim != 1 or not len(samples):
        raise ValueError(
            f"{where}: {job.voice.engine} gave samples of shape {samples.shape} for {job.utterance.text[:60]!r}; it takes [N] of at least one"
        )
    if not np.isfinite(samples).all() or not np.any(samples):
        raise ValueError(f"{where}: {job.voice.engine} gave silence, or samples that are no numbers, for {job.utterance.text[:60]!r}")
    levelled = _levelled(_resampled(samples, rate, job.delivery.sample_rate), job.delivery)
    for path in job.paths:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        soundfile.write(temporary, levelled, job.delivery.sample_rate, subtype="PCM_16", format="WAV")
        temporary.replace(path)
    return {
        "files": [path.name for path in job.paths],
        "part": job.utterance.part,
        "text": job.utterance.text,
        "engine": job.voice.engine,
        "voice": job.voice.voice,
        "speaker": job.voice.speaker,
        "speed": job.voice.speed,
        "version": job.version,
        "language": job.language,
        "seed": job.seed,
        "sample_rate": job.delivery.sample_rate,
        "seconds": round(len(levelled) / job.delivery.sample_rate, 4),
        "loudness_lufs": round(_loudness(levelled, job.delivery.sample_rate), 2),
        "digest": recording_digest(job.paths[0].read_bytes()),
        "recipe": job.recipe,
    }


def _is_made(job: _Job, records: dict[str, dict[str, Any]]) -> bool:
    """Whether its files are there, as the manifest has them."""
    record = records.get(job.recipe, {})
    if record.get("files") != [path.name for path in job.paths]:
        return False
    return all(path.is_file() and recording_digest(path.read_bytes()) == record["digest"] for path in job.paths)


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Records by recipe; the last line of a run that was killed may be half a line."""
    if not path.is_file():
        return {}
    records = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            record = json.loads(line) if line else {}
        except json.JSONDecodeError:
            continue
        if "recipe" in record:
            records[record["recipe"]] = record
    return records


def _name_in_yaml(folder: Path, benchmark: Benchmark, voice: VoiceSpec, delivery: Delivery) -> None:
    path = folder / "sets.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    datasets = content.get("datasets", {}) if isinstance(content, dict) else {}
    name = f"{benchmark.name}@{voice.name}"
    entry = {"path": f"{benchmark.name}.jsonl", "audio_path": name, "lang": benchmark.language}
    if delivery.candidates:
        entry["candidate_audio_path"] = f"{name}/candidates"
    _write(path, yaml.safe_dump({"datasets": {**datasets, name: entry}}, allow_unicode=True, sort_keys=True))


def _resampled(samples: Samples, rate: int, wanted: int) -> Samples:
    import torch
    import torchaudio

    if rate == wanted:
        return samples
    resampled: Samples = torchaudio.functional.resample(torch.from_numpy(np.ascontiguousarray(samples)), rate, wanted).numpy()
    return resampled


def _levelled(samples: Samples, delivery: Delivery) -> Samples:
    gain = 10 ** ((delivery.loudness_lufs - _loudness(samples, delivery.sample_rate)) / 20)
    peak = float(np.abs(samples).max()) * gain
    levelled: Samples = (samples * (gain if peak <= _HIGHEST_PEAK else gain * _HIGHEST_PEAK / peak)).astype(np.float32)
    return levelled


def _loudness(samples: Samples, rate: int) -> float:
    # What is shorter than a block is measured as if it went on.
    loudness = loudness_lufs(np.resize(samples, max(len(samples), math.ceil(0.4 * rate))), rate)
    return loudness if math.isfinite(loudness) else -70.0


def _digest(*content: Any) -> bytes:
    return hashlib.blake2b(json.dumps(content, ensure_ascii=False, sort_keys=True).encode(), digest_size=16).digest()


def _write(path: Path, content: str) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)
