"""Recordings on disk: opened, checked and named by their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import soundfile

from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.items import Audio, recording_digest

_READERS = 8


def open_recording(path: Path, what: str) -> Audio:
    """A recording that is there, can be read and is whole.

    Args:
        path: The file.
        what: How to name it in an error.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{what} is missing: {path}")
    try:
        with soundfile.SoundFile(path) as file:
            frames, seconds = file.frames, file.frames / file.samplerate
            # A flac cut short fails here, a wav does not.
            file.seek(max(frames - 1, 0))
            file.read(1)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise ValueError(f"{what} cannot be read: {path}: {error}") from error
    if not frames or _is_cut_short(path):
        raise ValueError(f"{what} has no samples or is cut short: {path}")
    return Audio(path, recording_digest(path.read_bytes()), seconds)


def open_recordings(files: Sequence[tuple[str, str, Path]], faults: Faults) -> list[Audio | None]:
    """Opens and hashes recordings, several at a time: folders on network file systems are slow to answer.

    Args:
        files: Place, name and path of each.
        faults: Takes what is wrong with them.

    Returns:
        One each, ``None`` for those that cannot be used.
    """

    def opened(file: tuple[str, str, Path]) -> Audio | OSError | ValueError:
        _, what, path = file
        try:
            return open_recording(path, what)
        except (OSError, ValueError) as error:
            return error

    audios: list[Audio | None] = []
    with ThreadPoolExecutor(_READERS) as pool:
        for (place, _, _), result in zip(files, pool.map(opened, files), strict=True):
            if isinstance(result, Exception):
                faults.add("missing_recording" if isinstance(result, FileNotFoundError) else "damaged_recording", place, str(result), result)
            audios.append(result if isinstance(result, Audio) else None)
    return audios


def _is_cut_short(path: Path) -> bool:
    """Whether a wav holds less than its header promises; libsndfile would read what is left without a word."""
    with path.open("rb") as stream:
        header = stream.read(8)
    promised = int.from_bytes(header[4:], "little") + 8
    # Writers to a pipe cannot seek back and leave the largest size they know.
    return header[:4] == b"RIFF" and promised < 0x7FFF_F000 and promised > path.stat().st_size
