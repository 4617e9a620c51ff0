"""``s2sbench validate``: every fault of a set on disk, and an audit of its recordings and texts."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from s2sbench_callback.audit.audit import audit
from s2sbench_callback.audit.page import as_html, as_json, as_lines, as_markdown
from s2sbench_callback.audit.recogniser import FasterWhisper
from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.benchmarks.release_layout import set_names

_EPILOG = """\
Faults keep a set from being used: rows, texts and recordings that are missing, damaged or ambiguous. Doubts may distort its figures: clipped,
cut, quiet or stereo recordings, an odd pace, other words than the text's, questions that occur twice or in the training material, answers that are
given away by the candidates alone. Lines go to stdout, all faults and three doubts of each kind; --output writes the page, .md or .json, with all
of them.

examples:
  s2sbench validate S2SBench/eval_s2t.yaml --root S2SBench --output audit.html
  s2sbench validate eval.yaml --set mine --whisper /models/faster-whisper-small
  s2sbench validate eval.yaml --manifest train_manifest.json --strict
  s2sbench validate eval.yaml --json | jq '.sets[].faults'

exit status:
  0  no fault (with --strict: and no doubt)
  1  there are some
  2  could not be looked at
"""
_STYLES = {".html": as_html, ".md": as_markdown, ".json": as_json}


def run(arguments: list[str]) -> int:
    """Audits and reports.

    Args:
        arguments: The YAML and options.

    Returns:
        1 where there are faults, or with ``--strict`` doubts.

    Raises:
        FileNotFoundError: If the YAML, a manifest or the recogniser's model is missing.
        ValueError: If a set is asked for that there is not.
    """
    parser = argparse.ArgumentParser(
        prog="s2sbench validate",
        description="Reports every fault of sets in the release's layout in one pass, and audits their recordings and texts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("yaml", type=Path, metavar="YAML", help="the file that names the sets")
    parser.add_argument("--root", type=Path, help="folder, or archive of it, that the paths in the YAML start from; by default the YAML's own")
    parser.add_argument("--set", action="append", metavar="NAME", help="look at this set alone; may be given again; by default all")
    parser.add_argument(
        "--whisper", type=Path, metavar="FOLDER", help="listen with this faster-whisper model and report error rates against the text"
    )
    parser.add_argument("--manifest", type=Path, action="append", default=[], metavar="FILE", help="training material to look for the questions in")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes for the recordings; by default one a CPU")
    parser.add_argument("--strict", action="store_true", help="doubts count as faults for the exit status")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the whole report there: .html, .md or .json")
    parser.add_argument("--json", action="store_true", help="the whole report as JSON on stdout")
    chosen = parser.parse_args(arguments)
    if chosen.output and chosen.output.suffix not in _STYLES:
        raise ValueError(f"--output {chosen.output}: the ending must be one of {', '.join(_STYLES)}")
    for path in (chosen.yaml, *chosen.manifest):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
    faults = Faults(at_once=False)
    names = set_names(chosen.yaml, faults)
    if unknown := [name for name in chosen.set or () if names and name not in names]:
        raise ValueError(f"{chosen.yaml}: no set {unknown[0]!r} under 'datasets'; it has {', '.join(names)}")
    recogniser = FasterWhisper(chosen.whisper, chosen.workers) if chosen.whisper else None
    shows = sys.stderr.isatty()
    found = audit(chosen.yaml, chosen.set or names, chosen.root, recogniser, chosen.manifest, chosen.workers, shows, faults)
    if chosen.output:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(f"{_STYLES[chosen.output.suffix](found)}\n", encoding="utf-8")
    print(as_json(found) if chosen.json else as_lines(found))
    if chosen.output and not chosen.json:
        print(chosen.output)
    return int(bool(found.all_faults or (chosen.strict and found.all_doubts)))
