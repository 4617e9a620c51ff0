"""Speech synthesisers behind one small protocol: hibari-tts, Piper, eSpeak NG, and a callable of the user's."""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import soundfile

from s2sbench_callback.items import Language

if TYPE_CHECKING:
    from hibari import Hibari as HibariTTS
    from piper import PiperVoice

Samples = npt.NDArray[np.float32]
_WORDS_PER_MINUTE = 175


class Synthesiser(Protocol):
    """Reads a text aloud; the same text and seed give the same samples."""

    def __call__(self, text: str, language: Language, seed: int) -> tuple[Samples, int]:
        """Mono samples in [-1, 1], ``[N]``, and their rate in Hz."""
        ...


@dataclass(frozen=True)
class VoiceSpec:
    """A voice by name, which can be sent to another process.

    Attributes:
        name: How it is called in sets and files: letters, digits and ``_ . + -``.
        engine: ``hibari``, ``piper``, ``espeak`` or ``python``.
        voice: The engine's name or file for it; of ``python``, the callable as ``package.module.name``.
        speed: Pace, 1 is the voice's own.
        speaker: Number of the speaker in a Piper voice that has several.
    """

    name: str
    engine: str
    voice: str
    speed: float = 1.0
    speaker: int | None = None


def parse_voice(words: str, speed: float = 1.0) -> VoiceSpec:
    """A voice from the command line: ``[NAME=]ENGINE[:VOICE][,speaker=N][,speed=X]``.

    Args:
        words: For example ``espeak:en-us+f3``, ``anna=piper:/voices/en_US-amy.onnx,speed=1.1``, ``python:my_package.tts.speak``.
        speed: Pace where the words name none.

    Raises:
        ValueError: If there is no such engine, an option is unknown, or the name cannot be one.
    """
    named = re.match(r"([\w.+-]+)=(?=hibari|piper|espeak|python)", words)
    described, *options = words[named.end() if named else 0 :].split(",")
    engine, _, voice = described.partition(":")
    if engine not in _ENGINES:
        raise ValueError(f"voice {words!r}: there is no engine {engine!r}; there are {', '.join(_ENGINES)}, for example espeak:en-us+f3")
    chosen: dict[str, Any] = {"speed": speed}
    for option in options:
        key, _, value = option.partition("=")
        if key not in ("speed", "speaker"):
            raise ValueError(f"voice {words!r}: there is no option {key!r}; there are speed and speaker")
        try:
            chosen[key] = float(value) if key == "speed" else int(value)
        except ValueError as error:
            raise ValueError(f"voice {words!r}: {key} must be a number, got {value!r}") from error
    if not chosen["speed"] > 0:
        raise ValueError(f"voice {words!r}: speed must be above 0, got {chosen['speed']}")
    if engine in ("piper", "python") and not voice:
        raise ValueError(f"voice {words!r}: {engine} needs {'the .onnx file of a voice' if engine == 'piper' else 'a callable'}, as {engine}:…")
    voice = voice or {"hibari": "heart", "espeak": ""}[engine]
    speaker = f"-{chosen['speaker']}" if "speaker" in chosen else ""
    pace = f"-x{chosen['speed']:g}" if chosen["speed"] != 1 else ""
    name = named.group(1) if named else f"{engine}-{Path(voice).stem if engine == 'piper' else voice}".rstrip("-") + speaker + pace
    if not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"voice {words!r}: {name!r} cannot be its name; give it one of letters, digits and _ . + -, as NAME={words}")
    return VoiceSpec(name, engine, voice, **chosen)


@cache
def open_voice(spec: VoiceSpec) -> Synthesiser:
    """The synthesiser of a voice, made once in each process.

    Raises:
        FileNotFoundError: If its file, or the program, is missing.
        ModuleNotFoundError: If its package is not installed.
        ValueError: If there is no such voice.
    """
    return _ENGINES[spec.engine](spec)


def engine_version(spec: VoiceSpec) -> str:
    """Of the package or program that speaks, as it is installed."""
    if spec.engine == "espeak":
        return _espeak("--version").decode().splitlines()[0].partition("  ")[0].removeprefix("eSpeak NG text-to-speech: ")
    if spec.engine == "python":
        return str(getattr(import_module(spec.voice.rpartition(".")[0].partition(".")[0]), "__version__", "unknown"))
    return version({"hibari": "hibari-tts", "piper": "piper-tts"}[spec.engine])


class Hibari:
    """An English voice of ``hibari-tts``: ``heart`` comes with the package, it downloads others itself."""

    def __init__(self, spec: VoiceSpec) -> None:
        try:
            from hibari import Hibari as HibariTTS
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("hibari-tts is not installed: pip install 's2sbench_callback[demo]'", name="hibari") from error
        self._spec = spec
        try:
            self._model: HibariTTS = HibariTTS(voice=spec.voice, threads=1)
        except KeyError as error:
            raise ValueError(f"hibari-tts has no voice {spec.voice!r}; heart is the one in its package") from error

    def __call__(self, text: str, language: Language, seed: int) -> tuple[Samples, int]:
        """See :class:`Synthesiser`."""
        if language != "en":
            raise ValueError("hibari speaks English alone, and the set is Chinese; espeak:cmn-latn-pinyin and some Piper voices speak Mandarin")
        return np.asarray(self._model(text, speed=self._spec.speed, seed=seed), dtype=np.float32), int(self._model.sample_rate)


class Piper:
    """A voice of Piper from its ``.onnx`` file, with the ``.onnx.json`` beside it.

    Its noise comes from a generator inside the model that takes a seed only when the model is loaded, so that an utterance would depend on those
    before it. It is therefore switched off: the seed changes nothing, and a recogniser understands the speech as well (7.3 against 7.0 % word
    error rate).
    """

    def __init__(self, spec: VoiceSpec) -> None:
        try:
            from piper import PiperVoice
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("piper-tts is not installed: pip install 's2sbench_callback[speak]'", name="piper") from error
        path = Path(spec.voice)
        for needed in (path, path.with_name(f"{path.name}.json")):
            if not needed.is_file():
                raise FileNotFoundError(f"{needed}: no such file; a Piper voice is an .onnx file with its .onnx.json beside it")
        self._spec = spec
        self._voice: PiperVoice = PiperVoice.load(path)
        if spec.speaker is not None and not 0 <= spec.speaker < self._voice.config.num_speakers:
            raise ValueError(f"{path} has {self._voice.config.num_speakers} speaker(s), numbered from 0; there is no {spec.speaker}")

    def __call__(self, text: str, language: Language, seed: int) -> tuple[Samples, int]:
        """See :class:`Synthesiser`."""
        from piper.config import SynthesisConfig

        spoken = str(self._voice.config.espeak_voice).partition("-")[0]
        if spoken not in {"en": ("en",), "zh": ("cmn", "zh")}[language]:
            raise ValueError(f"{self._spec.voice} speaks {spoken!r}, and the set is {language!r}; choose another voice")
        settings = SynthesisConfig(
            speaker_id=self._spec.speaker,
            length_scale=self._voice.config.length_scale / self._spec.speed,
            noise_scale=0.0,
            noise_w_scale=0.0,
            normalize_audio=False,  # the whole text at once, not sentence by sentence
        )
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(text, settings)]
        return np.concatenate([np.asarray(chunk, dtype=np.float32) for chunk in chunks]), int(self._voice.config.sample_rate)


class Espeak:
    """A voice of eSpeak NG, from Debian's package ``espeak-ng``: robotic, in many languages, the same every time."""

    def __init__(self, spec: VoiceSpec) -> None:
        self._spec = spec
        known = _espeak("--voices").decode()
        self._voice = spec.voice
        language = spec.voice.partition("+")[0]
        if language and not any(language in line.split() or f"({language} " in line for line in known.splitlines()):
            raise ValueError(f"eSpeak NG has no voice {language!r}; `espeak-ng --voices` lists them")

    def __call__(self, text: str, language: Language, seed: int) -> tuple[Samples, int]:
        """See :class:`Synthesiser`; the seed changes nothing."""
        # Debian's 1.51 reads hanzi as the English names of their code points under `cmn`.
        voice = self._voice or {"en": "en-us", "zh": "cmn-latn-pinyin"}[language]
        if language == "zh" and "(en)" in _espeak("-q", "-x", "-v", voice, "你好").decode():
            raise ValueError(f"eSpeak NG's voice {voice!r} reads hanzi as English here; take espeak:cmn-latn-pinyin")
        if language == "zh" and not voice.startswith(("cmn", "zh", "yue", "hak")):
            raise ValueError(f"eSpeak NG's voice {voice!r} speaks no Chinese; take espeak:cmn-latn-pinyin")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "spoken.wav"
            _espeak("-v", voice, "-s", str(round(_WORDS_PER_MINUTE * self._spec.speed)), "-w", str(path), "--stdin", text=text)
            samples, rate = soundfile.read(io.BytesIO(path.read_bytes()), dtype="float32")
        return samples, int(rate)


class Python:
    """A callable of the user's: ``speak(text, language, seed)`` gives samples and their rate."""

    def __init__(self, spec: VoiceSpec) -> None:
        module, _, name = spec.voice.rpartition(".")
        try:
            function: Synthesiser = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"python:{spec.voice} cannot be imported: {error}; give it as package.module.name") from error
        self._function, self._spec = function, spec
        if spec.speed != 1 or spec.speaker is not None:
            raise ValueError(f"python:{spec.voice}: speed and speaker are for the engines of this package; make the callable do it")

    def __call__(self, text: str, language: Language, seed: int) -> tuple[Samples, int]:
        """See :class:`Synthesiser`."""
        samples, rate = self._function(text, language, seed)
        return np.asarray(samples, dtype=np.float32), int(rate)


_ENGINES: dict[str, Callable[[VoiceSpec], Synthesiser]] = {"hibari": Hibari, "piper": Piper, "espeak": Espeak, "python": Python}


def _espeak(*arguments: str, text: str | None = None) -> bytes:
    try:
        done = subprocess.run(["espeak-ng", *arguments], input=text.encode() if text is not None else None, capture_output=True, check=True)
    except FileNotFoundError as error:
        raise FileNotFoundError("espeak-ng: no such program; on Debian and Ubuntu: apt-get install espeak-ng") from error
    except subprocess.CalledProcessError as error:
        raise ValueError(f"espeak-ng {' '.join(arguments)} failed: {error.stderr.decode(errors='replace').strip()}") from error
    return done.stdout
