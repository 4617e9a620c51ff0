"""What a speech recogniser hears in the recordings, and how far it is from the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from s2sbench_callback.audit.texts import units
from s2sbench_callback.items import Language

if TYPE_CHECKING:
    from faster_whisper import WhisperModel


class Recogniser(Protocol):
    """Turns a recording into text; any callable of this form will do."""

    def __call__(self, path: Path, language: Language) -> str:
        """What is said in a recording."""
        ...


class FasterWhisper:
    """Whisper by ``faster-whisper``, from a folder on disk: nothing is downloaded.

    Args:
        folder: Of a model in CTranslate2's format (``model.bin``, ``config.json``, ``tokenizer.json``, a vocabulary).
        at_once: Recordings that are recognised at the same time, on the CPU each by one thread.

    Raises:
        FileNotFoundError: If the folder has no such model.
        ModuleNotFoundError: If ``faster-whisper`` is not installed.
    """

    def __init__(self, folder: Path, at_once: int = 1) -> None:
        if not (folder / "model.bin").is_file():
            raise FileNotFoundError(
                f"{folder}: no model.bin, so this is no Whisper model for faster-whisper; ct2-transformers-converter makes one from a folder of "
                "transformers'"
            )
        try:
            from ctranslate2 import get_cuda_device_count
            from faster_whisper import WhisperModel
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "recognising speech needs faster-whisper, which is not installed: pip install 's2sbench_callback[audit]'", name="faster_whisper"
            ) from error
        device, compute_type = ("cuda", "float16") if get_cuda_device_count() else ("cpu", "float32")
        self._model: WhisperModel = WhisperModel(
            str(folder), device=device, compute_type=compute_type, cpu_threads=1, num_workers=at_once, local_files_only=True
        )

    def __call__(self, path: Path, language: Language) -> str:
        """What Whisper hears, greedily; each recording by itself.

        Raises:
            ValueError: If the model knows English alone and the set is Chinese.
        """
        if language != "en" and not self._model.model.is_multilingual:
            raise ValueError("this Whisper model knows English alone, and the set is Chinese; give --whisper a multilingual one")
        segments, _ = self._model.transcribe(str(path), language=language, beam_size=1, temperature=0.0, condition_on_previous_text=False)
        return "".join(segment.text for segment in segments).strip()


def error_rate(text: str, heard: str, language: Language) -> float:
    """Word error rate, in Chinese character error rate, without case, punctuation and width.

    Args:
        text: What should be said.
        heard: What a recogniser heard.
        language: Of both.

    Returns:
        Edits over the length of the text: 0 for the same, above 1 where much is heard that is not there; 0 or 1 for an empty text.
    """
    from torchaudio.functional import edit_distance

    # Whisper writes Chinese in either script.
    in_one_script = _to_simplified() if language == "zh" else str
    wanted, got = units(in_one_script(text), language), units(in_one_script(heard), language)
    return edit_distance(wanted, got) / len(wanted) if wanted else float(bool(got))


def nearest(heard: str, texts: Sequence[str], language: Language) -> int:
    """Which of some texts is nearest to what was heard."""
    rates = [error_rate(text, heard, language) for text in texts]
    return rates.index(min(rates))


@cache
def _to_simplified() -> Callable[[str], str]:
    try:
        from opencc import OpenCC
    except ModuleNotFoundError:
        # Where both are in one script already, nothing is lost.
        return str
    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert
