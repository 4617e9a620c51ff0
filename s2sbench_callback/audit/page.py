"""The audit as one page, as Markdown, as JSON and as lines for a terminal."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from s2sbench_callback.audit.audit import Audit, RecordingAudit, SetAudit
from s2sbench_callback.benchmarks.faults import Fault
from s2sbench_callback.plots import svg

_MOST_SHOWN = 200
_SHOWN_A_KIND = 3
_INK, _LIGHT = "#1f3b63", "#e8703a"


def as_data(audit: Audit) -> dict[str, Any]:
    """Everything that was found, as plain data.

    Args:
        audit: What to tell.
    """
    return {
        "path": str(audit.path),
        "faults": [asdict(fault) for fault in audit.faults],
        "sets": [_set(one) for one in audit.sets],
        "repeated": [asdict(pair) for pair in audit.repeated],
    }


def as_json(audit: Audit) -> str:
    """The same as one JSON object; NaN and infinity become null."""
    return json.dumps(_plain(as_data(audit)), ensure_ascii=False, allow_nan=False, indent=2)


def as_html(audit: Audit) -> str:
    """One page with histograms, which needs nothing else."""
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        files("s2sbench_callback.audit").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    drawings = {one.name: Markup(svg(figure)) for one in audit.sets if (figure := histograms(one))}  # drawn here
    return template.render(data=as_data(audit), drawings=drawings, verdict=verdict(audit), most=_MOST_SHOWN)


def as_markdown(audit: Audit) -> str:
    """The same as Markdown, without pictures."""
    lines = [verdict(audit), ""]
    for each in as_data(audit)["sets"]:
        lines += [f"## {each['name']}", "", *(f"- {fact}" for fact in each["facts"]), ""]
        if each["baselines"]:
            lines += ["| guessed by | accuracy | |", "|---|---|---|"]
            lines += [f"| {row['name']} | {row['words']} | {'gives answers away' if row['gives_away'] else ''} |" for row in each["baselines"]]
            lines.append("")
        for title, found in (("Faults", each["faults"]), ("Doubts", each["doubts"])):
            if found:
                lines += [f"### {title} ({len(found)})", "", *(f"- `{row['kind']}` {row['place']}: {row['reason']}" for row in found), ""]
    return "\n".join(lines).strip()


def as_lines(audit: Audit) -> str:
    """For a terminal: every fault, doubts by their kind, and the figures of each set."""
    lines = [f"fault  [{fault.kind}] {fault}" for fault in audit.all_faults]
    for kind, doubts in _by_kind(audit.all_doubts):
        lines += [f"doubt  [{kind}] {doubt}" for doubt in doubts[:_SHOWN_A_KIND]]
        if len(doubts) > _SHOWN_A_KIND:
            lines.append(f"doubt  [{kind}] … and {len(doubts) - _SHOWN_A_KIND} more")
    for one in audit.sets:
        lines += ["", one.name, *(f"  {fact}" for fact in facts(one))]
        lines += [f"  {each.name:<36}{_interval(each.accuracy)}{'  gives answers away' if each.gives_away else ''}" for each in one.baselines]
    return "\n".join([*lines, "", verdict(audit)]).strip()


def verdict(audit: Audit) -> str:
    """The outcome in one sentence."""
    faults, doubts = len(audit.all_faults), len(audit.all_doubts)
    names = ", ".join(one.name for one in audit.sets) or str(audit.path)
    if not faults and not doubts:
        return f"{names}: no fault and nothing doubtful was found."
    return f"{names}: {_count(faults, 'fault')}, {_count(doubts, 'doubt')}." + ("" if faults else " The set can be used.")


def facts(one: SetAudit) -> list[str]:
    """What a set consists of, in sentences."""
    if one.benchmark is None:
        return [f"{_count(one.rows, 'row')}, no question that is whole"]
    items = one.benchmark.items
    found = [f"{_count(one.rows, 'row')}, {_count(len(items), 'question')}, {one.benchmark.language}; {_candidates(one)}"]
    if not one.recordings:
        return [*found, "no recordings: it can be asked in T→T alone; `s2sbench speak` makes them"]
    seconds = [each.measures.seconds for each in one.recordings]
    rates = Counter(each.measures.sample_rate for each in one.recordings).most_common()
    found.append(
        f"{_count(len(seconds), 'recording')}, {sum(seconds) / 3600:.2f} h, {min(seconds):.1f} to {max(seconds):.1f} s; "
        + ", ".join(f"{number} at {rate:,} Hz" for rate, number in rates)
    )
    levels, paces = _finite(each.measures.loudness_lufs for each in one.recordings), _finite(each.pace for each in one.recordings)
    if levels:
        found.append(f"loudness {_spread(levels, 1)} LUFS")
    if paces:
        unit = "words" if one.benchmark.language == "en" else "characters"
        found.append(f"pace {_spread(paces, 2)} {unit} a second")
    if one.pairs:
        kinds = Counter(pair.sameness for pair in one.pairs)
        found.append("recordings of a question's contexts: " + ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()))
        apart = [abs(pair.seconds) for pair in one.pairs if pair.sameness in ("two readings", "other words")]
        if apart:
            found.append(f"their lengths differ by {_spread(apart, 2)} s")
    rates_heard = _finite(each.error_rate for each in one.recordings if each.error_rate is not None)
    if rates_heard:
        kind = "word" if one.benchmark.language == "en" else "character"
        found.append(f"{kind} error rate {_spread(rates_heard, 3)}, mean {statistics.fmean(rates_heard):.3f}")
    return found


def histograms(one: SetAudit) -> Figure | None:
    """Figures of a set's recordings, a panel each; ``None`` where it has none."""
    if not one.recordings:
        return None
    unit = "words" if one.language == "en" else "characters"
    panels: list[tuple[str, list[float]]] = [
        ("length (s)", _of(one, lambda each: each.measures.seconds)),
        ("loudness (LUFS)", _of(one, lambda each: each.measures.loudness_lufs)),
        (f"pace ({unit} a second)", _of(one, lambda each: each.pace)),
        ("silence before (s)", _of(one, lambda each: each.measures.silence_before_seconds)),
        ("silence after (s)", _of(one, lambda each: each.measures.silence_after_seconds)),
        ("bandwidth (kHz)", _of(one, lambda each: each.measures.bandwidth_hz / 1_000)),
    ]
    apart = [pair.seconds for pair in one.pairs if pair.sameness in ("two readings", "other words")]
    if apart:
        panels.append(("second minus first recording of a pair (s)", apart))
    heard = _finite(each.error_rate for each in one.recordings if each.error_rate is not None)
    if heard:
        panels.append(("word error rate" if one.language == "en" else "character error rate", heard))
    shown = [(title, values) for title, values in panels if values]
    rows = -(-len(shown) // 3)
    figure = Figure(figsize=(11, 2.5 * rows))
    figure.set_layout_engine("constrained", h_pad=0.1)
    FigureCanvasAgg(figure)
    for number, (title, values) in enumerate(shown):
        axis = figure.add_subplot(rows, 3, number + 1)
        # Values that are alike have no width worth being cut into bins.
        lowest, highest = min(values), max(values)
        margin = max(0.0, 0.02 * max(abs(lowest), abs(highest), 1.0) - (highest - lowest)) / 2
        reach = (lowest - margin, highest + margin)
        axis.hist(values, bins=min(40, max(10, len(values) // 5)), range=reach, color=_INK)
        axis.axvline(statistics.median(values), color=_LIGHT, linewidth=1.2, linestyle="--")
        axis.set_title(title, fontsize=10)
        axis.set_ylabel("recordings" if "pair" not in title else "pairs", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _set(one: SetAudit) -> dict[str, Any]:
    return {
        "name": one.name,
        "language": one.language,
        "rows": one.rows,
        "questions": len(one.benchmark.items) if one.benchmark else 0,
        "fingerprint": one.benchmark.fingerprint if one.benchmark else None,
        "facts": facts(one),
        "faults": [asdict(fault) for fault in one.faults],
        "doubts": [asdict(doubt) for doubt in one.doubts],
        "baselines": [{**asdict(each), "gives_away": each.gives_away, "words": _interval(each.accuracy)} for each in one.baselines],
        "recordings": [_recording(each) for each in one.recordings],
        "pairs": [{**asdict(pair), "paths": [str(path) for path in pair.paths]} for pair in one.pairs],
        "leaks": [asdict(leak) for leak in one.leaks],
    }


def _recording(each: RecordingAudit) -> dict[str, Any]:
    spoken = {"path": str(each.spoken.path), "question": each.spoken.name, "part": each.spoken.part, "text": each.spoken.text}
    return {**spoken, **asdict(each.measures), "pace": each.pace, "error_rate": each.error_rate, "heard": each.heard}


def _candidates(one: SetAudit) -> str:
    counts = Counter(len(item.candidates) for item in one.benchmark.items) if one.benchmark else Counter()
    return ", ".join(f"{number} with {size} candidates" for size, number in sorted(counts.items()))


def _of(one: SetAudit, figure: Callable[[RecordingAudit], float]) -> list[float]:
    return _finite(figure(each) for each in one.recordings)


def _finite(values: Iterable[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _spread(values: Sequence[float], places: int) -> str:
    return f"{statistics.median(values):.{places}f} (from {min(values):.{places}f} to {max(values):.{places}f})"


def _interval(estimate: Any) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}" if number else f"no {word}"


def _by_kind(doubts: Sequence[Fault]) -> list[tuple[str, list[Fault]]]:
    return [(kind, [doubt for doubt in doubts if doubt.kind == kind]) for kind in dict.fromkeys(doubt.kind for doubt in doubts)]


def _plain(value: Any) -> Any:
    """With null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
