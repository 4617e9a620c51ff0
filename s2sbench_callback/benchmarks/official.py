"""Reads sets in the layout of the S2SBench release.

One YAML names the sets::

    datasets:
      sStory_s2t: {path: data/sStory.jsonl, audio_path: data/sStory_wavs, lang: en}

A story set has two rows a question (``uttid``, ``first``, ``last``), neighbours by number, the even place right and the odd
place wrong. A lettered set has one row a question (``uttid``, ``first``, ``A``, ``B``, ..., ``answer``). Rows may name a ``group``: questions
that share one are not independent of each other. The recording of a row is ``<audio_path>/<uttid>.wav``. Folders and files may lie beside
their place as archives, as they are downloaded.

For spoken candidates, which the release does not have, an entry may name two more folders: ``candidate_audio_path`` with a recording of each
candidate alone, and ``story_audio_path`` with one of context and candidate together. In a story set the recording of a row's
candidate is ``<uttid>.wav``, in a lettered set ``<uttid>_<letter>.wav``. A set of whole stories alone may leave ``audio_path`` out.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from s2sbench_callback.benchmarks.faults import Faults
from s2sbench_callback.benchmarks.release_layout import SharedAudio, read_set, set_files
from s2sbench_callback.items import Benchmark

_SET_NAMES = {"sStory_s2t": "sstorycloze", "zh_story": "zh-sstorycloze", "cmmlu_write_4": "scmmlu"}


def official(
    yaml: str | Path,
    name: str,
    root: str | Path | None = None,
    shared_audio: SharedAudio = "identical",
    set_name: str | None = None,
) -> Benchmark:
    """Reads one set of the release, or a set of one's own in the same layout.

    Every row and every recording is checked here, so that a fault shows before training starts; ``s2sbench validate`` lists all faults at once.

    Args:
        yaml: The file that names the sets.
        name: Which of them, for example ``sStory_s2t``.
        root: Folder that the paths in the YAML start from, or an archive of it; by default the YAML's own.
        shared_audio: When the two recordings of a story count as one context: only when their bytes are ``identical``, or ``always``
            (the first is used for both candidates, the second is never opened).
        set_name: ``<set>`` in the metric keys; by default the paper's name for the release's sets, otherwise ``name``.

    Returns:
        The benchmark. Ties lose in a story set and win in a lettered one, as in the release.

    Raises:
        FileNotFoundError: If the YAML, the jsonl or a recording is missing.
        ValueError: If anything in them is wrong; the message names file, row and reason.
    """
    if shared_audio not in ("identical", "always"):
        raise ValueError(f"shared_audio must be 'identical' or 'always', got {shared_audio!r}")
    faults = Faults(at_once=True)
    files = set_files(Path(yaml), name, Path(root) if root is not None else None, faults)
    assert files is not None  # a fault would have been raised
    content = read_set(files, shared_audio, faults)
    if content.different_contexts:
        first = content.different_contexts[0]
        warnings.warn(
            f"{len(content.different_contexts)} of {len(content.items)} pairs have a different 'first' in their two rows, which the release does not "
            f"check; each candidate is scored with its own context. The first such pair: {first.place}, uttid {first.uttid!r}.",
            stacklevel=2,
        )
    return Benchmark(
        name=set_name or _SET_NAMES.get(name, name),
        language=files.language,
        items=content.items,
        tie_rule="win" if content.is_lettered else "lose",
    )
