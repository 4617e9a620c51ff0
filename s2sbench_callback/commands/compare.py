"""``s2sbench compare``: paired tests between runs, checkpoints, sets of seeds, or S→T and T→T."""

from __future__ import annotations

import argparse
import json
import sys

from s2sbench_callback.bootstrap import DRAWS, SEED
from s2sbench_callback.comparison import compare, worse_rows
from s2sbench_callback.comparison_text import markdown, text
from s2sbench_callback.sides import read_side

WATCHED = ("s2t/accuracy", "t2t/accuracy", "positive_minus_negative")

_EXAMPLES = """\
a side is the folder of a run or of its record, FOLDER@STEP for a probe that is not the last, and several trainings that differ by their seed with
commas between or as a quoted pattern. With one side, its other conditions are held against T→T.

examples:
  s2sbench compare runs/single runs/two                              is B better than A, figure by figure?
  s2sbench compare runs/two@400 runs/two                             did stage 2 help?
  s2sbench compare runs/two                                          S→T against T→T
  s2sbench compare 'runs/single_*' 'runs/two_*'                      several seeds a side, pooled
  s2sbench compare runs/a runs/b --difference 0.01                   how many questions would show 0.01?
  s2sbench compare runs/main runs/mine --fail-if-worse               status 1 if B is significantly worse
  s2sbench compare runs/main runs/mine --fail-if-worse=s2t/accuracy  the same, by this figure alone
  s2sbench compare runs/a runs/b --json | jq '.rows[] | select(.verdict == "worse")'

exit status:
  0  done
  1  done, and B is significantly worse, with --fail-if-worse
  2  could not be done; the reason stands on stderr
"""


def run(arguments: list[str]) -> int:
    """Compares and prints.

    Args:
        arguments: One or two sides, and options.

    Returns:
        1 where the second side is significantly worse and ``--fail-if-worse`` asks for it.

    Raises:
        FileNotFoundError: If a record or a probe is not there.
        ValueError: If records are damaged, or were asked other questions.
    """
    chosen = _parser().parse_args(arguments)
    first = read_side(chosen.first)
    second = read_side(chosen.second) if chosen.second is not None else None
    compared = compare(first, second, chosen.difference, chosen.draws, chosen.seed)
    worse = []
    if chosen.fail_if_worse is not None:
        present = {key for row in compared.rows for key in (row.key, row.figure)}
        worse = worse_rows(compared, chosen.fail_if_worse.split(",") if chosen.fail_if_worse else [key for key in WATCHED if key in present])
    if chosen.format == "json":
        print(json.dumps({**compared.to_state(), "worse": [f"{row.set}/{row.key}" for row in worse]}, ensure_ascii=False, allow_nan=False, indent=1))
    else:
        print(markdown(compared) if chosen.format == "md" else text(compared))
    if worse:
        print(f"s2sbench compare: worse in {', '.join(f'{row.set}/{row.key}' for row in worse)}", file=sys.stderr)
    return int(bool(worse))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sbench compare",
        description="Is the difference real? Holds B against A on the same questions.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("first", metavar="A", help="what is held against")
    parser.add_argument("second", metavar="B", nargs="?", help="what is judged")
    parser.add_argument("--format", choices=("text", "md", "json"), default="text", help="how the result is written")
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument("--difference", type=_positive, help="also say how many questions it would take to find this true difference")
    parser.add_argument(
        "--fail-if-worse",
        nargs="?",
        const="",
        metavar="FIGURES",
        help="end with status 1 if B is significantly worse, after correction, in one of these figures; give it after A and B, or figures with =. "
        f"By default {', '.join(WATCHED)}",
    )
    parser.add_argument("--draws", type=_count, default=DRAWS, help=f"of the bootstrap ({DRAWS})")
    parser.add_argument("--seed", type=_seed, default=SEED, help=f"of the bootstrap and the sign flips ({SEED})")
    return parser


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"a difference must be above 0, got {word}")
    return value


def _count(word: str) -> int:
    value = int(word)
    if value < 100:
        raise argparse.ArgumentTypeError(f"an interval needs at least 100 draws, got {word}")
    return value


def _seed(word: str) -> int:
    value = int(word)
    if value < 0:
        raise argparse.ArgumentTypeError(f"a seed is 0 or above, got {word}")
    return value
