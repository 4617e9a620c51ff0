"""The embedded benchmark: held-out stories of the embedded world, spoken, in the release's own layout."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import soundfile
import yaml
from tqdm.auto import tqdm

from s2sbench_callback.benchmarks.official import official
from s2sbench_callback.cache import cache_folder, made_once, shows_progress
from s2sbench_callback.items import Benchmark
from s2sbench_callback.mini_world.stories import Story, held_out_stories
from s2sbench_callback.mini_world.voice import FASTEST, SAMPLE_RATE, SLOWEST, Voice

# Far from the seeds of the training speech, so that no rendering is heard in both.
_FIRST_SEED = 1_000_000


def mini(questions: int = 240, cache_dir: str | Path | None = None, spoken_candidates: bool = False) -> Benchmark:
    """Two-ending stories that none of the embedded world's training streams contains.

    The first call renders the speech with ``hibari-tts`` into the cache folder, in the layout that :func:`official` reads: about a
    quarter of a minute for the default.

    Args:
        questions: Number of questions; even, since they come in mirrored twos.
        cache_dir: Where the rendered set is kept; by default below the user's cache folder.
        spoken_candidates: Whether the endings are rendered too, for S→S and T→S; each in the voice's pace for its own question.

    Raises:
        ModuleNotFoundError: If the set has to be rendered and ``hibari-tts`` is not installed.
        ValueError: If ``questions`` is odd or not positive.
    """
    stories = held_out_stories(questions)
    name = f"mini-{_fingerprint(stories)}" + "-endings" * spoken_candidates
    folder = made_once(cache_folder(cache_dir) / name, lambda unfinished: _write(unfinished, stories, spoken_candidates))
    return official(folder / "sets.yaml", name="mini")


def _fingerprint(stories: list[Story]) -> str:
    try:
        voice = version("hibari-tts")
    except PackageNotFoundError:
        voice = "not installed"
    content = json.dumps([voice, SLOWEST, FASTEST, [(story.context, story.right, story.wrong) for story in stories]])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def _write(folder: Path, stories: list[Story], spoken_candidates: bool) -> None:
    voice = Voice()
    (folder / "wavs").mkdir()
    (folder / "endings").mkdir()
    rows = []
    for question, story in enumerate(tqdm(stories, desc="speaking the embedded benchmark", unit="story", disable=not shows_progress())):
        right, wrong = 2 * question, 2 * question + 1
        rows += [{"uttid": right, "first": story.context, "last": story.right}, {"uttid": wrong, "first": story.context, "last": story.wrong}]
        spoken = folder / "wavs" / f"{right}.wav"
        _record(voice, story.context, question, spoken)
        _copy(spoken, folder / "wavs" / f"{wrong}.wav")
        for number, ending in ((right, story.right), (wrong, story.wrong)) if spoken_candidates else ():
            _record(voice, ending, question, folder / "endings" / f"{number}.wav")
    (folder / "mini.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    endings = {"candidate_audio_path": "endings"} if spoken_candidates else {}
    sets = {"datasets": {"mini": {"path": "mini.jsonl", "audio_path": "wavs", **endings, "lang": "en"}}}
    (folder / "sets.yaml").write_text(yaml.safe_dump(sets), encoding="utf-8")


def _record(voice: Voice, text: str, question: int, path: Path) -> None:
    soundfile.write(path, voice.speak_at_random_speed(text, _FIRST_SEED + question), SAMPLE_RATE, subtype="PCM_16")


def _copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
