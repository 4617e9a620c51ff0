"""``s2sbench speak``: a spoken set from a written one."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from s2sbench_callback.speaking.speak import Delivery, speak
from s2sbench_callback.speaking.text_source import written_set
from s2sbench_callback.synthesisers import parse_voice

_EPILOG = """\
TEXTSET is starter:NAME (stories-en, stories-zh, statements-en, statements-zh), Story Cloze's CSV or XStoryCloze's TSV, COPA's JSON lines, multiple
choice as CSV, or a YAML in the release's layout. A voice is [NAME=]ENGINE[:VOICE][,speaker=N][,speed=X]:

  hibari                        hibari-tts, English (pip install 's2sbench_callback[demo]')
  piper:/voices/en_US-amy.onnx  a voice of Piper (pip install 's2sbench_callback[speak]')
  espeak:en-us+f3               eSpeak NG (apt-get install espeak-ng); Mandarin is espeak:cmn-latn-pinyin, the default for zh
  python:my_package.tts.speak   speak(text, language, seed) -> (samples, rate), of your own

The two rows of a pair get one recording, so that prosody cannot tell the candidates apart; --per row gives each its own reading. Started again, it
makes what is missing. The folder then holds sets.yaml with a set <set>@<voice> for each voice, for official(), and a manifest for each.

examples:
  s2sbench speak starter:stories-en --voice hibari --voice espeak:en-us+f3 --output spoken
  s2sbench speak spring2016.csv --voice amy=piper:/voices/en_US-amy.onnx --sample_rate 16000 --output spoken
  s2sbench validate spoken/sets.yaml

exit status:
  0  everything is spoken
  2  it could not be done
"""


def run(arguments: list[str]) -> None:
    """Speaks a set.

    Args:
        arguments: The set, voices and options.

    Raises:
        FileNotFoundError: If the set, an engine or a voice is missing.
        ValueError: If anything of them cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="s2sbench speak",
        description="Makes the recordings of a written set with speech synthesisers, in the release's layout.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    usual = Delivery()
    parser.add_argument("textset", metavar="TEXTSET", help="the written set")
    parser.add_argument("--voice", action="append", required=True, metavar="VOICE", help="who speaks; may be given again")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="where to write")
    parser.add_argument("--set", metavar="NAME", help="the set of a YAML that names several; else what the set is called")
    parser.add_argument("--language", choices=("en", "zh"), help="of the texts, where the file does not say it")
    parser.add_argument("--negatives", choices=("wrong", "off_topic"), default="wrong", help="of starter stories: which endings are wrong")
    parser.add_argument("--per", choices=("pair", "row"), default=usual.per, help="one recording a pair of rows, or a reading for each row")
    parser.add_argument("--candidates", action="store_true", help="speak the candidates too, each alone, for S→S and T→S")
    parser.add_argument("--sample_rate", type=int, default=usual.sample_rate, metavar="HZ", help=f"of the files (default {usual.sample_rate})")
    parser.add_argument("--loudness", type=float, default=usual.loudness_lufs, metavar="LUFS", help=f"of each (default {usual.loudness_lufs:g})")
    parser.add_argument("--speed", type=float, default=1.0, help="pace of voices that name none; 1 is their own")
    parser.add_argument("--seed", type=int, default=usual.seed, help="of voices that vary")
    parser.add_argument("--limit", type=int, metavar="N", help="speak the first N questions alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; by default one a CPU")
    parser.add_argument("--json", action="store_true", help="what was made, as JSON on stdout")
    chosen = parser.parse_args(arguments)
    if not 4_000 <= chosen.sample_rate <= 192_000:
        raise ValueError(f"--sample_rate must lie between 4,000 and 192,000 Hz, got {chosen.sample_rate}")
    if not -60 <= chosen.loudness <= -5:
        raise ValueError(f"--loudness must lie between -60 and -5 LUFS, got {chosen.loudness}")
    if chosen.limit is not None and chosen.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {chosen.limit}")
    voices = [parse_voice(words, chosen.speed) for words in chosen.voice]
    benchmark = written_set(chosen.textset, chosen.language, chosen.set, chosen.negatives)
    if chosen.limit:
        benchmark = replace(benchmark, items=benchmark.items[: chosen.limit])
    delivery = Delivery(chosen.sample_rate, chosen.loudness, chosen.per, chosen.candidates, chosen.seed)
    made = speak(benchmark, voices, chosen.output, delivery, chosen.workers, progress=sys.stderr.isatty())
    path = chosen.output / "sets.yaml"
    if chosen.json:
        print(json.dumps({"yaml": str(path), "questions": len(benchmark.items), "made": {f"{benchmark.name}@{name}": n for name, n in made.items()}}))
        return
    for name, number in made.items():
        print(f"{benchmark.name}@{name}: {len(benchmark.items)} questions, {number} recordings made, the rest was there")
    print(path)
