"""``s2sbench score``: asks benchmarks of a model outside training."""

from __future__ import annotations

from jsonargparse import ArgumentParser

from s2sbench_callback.outcome import outcome
from s2sbench_callback.report import PREFIX
from s2sbench_callback.score import score
from s2sbench_callback.systems import System


def score_parser() -> ArgumentParser:
    """The arguments of ``s2sbench score``, which ``configs/table1`` are written in."""
    parser = ArgumentParser(prog="s2sbench score", description="Asks benchmarks of a model outside training.")
    parser.add_argument("--config", action="config", help="a YAML file with these arguments")
    # Made in this order, so that a fault in a set shows before gigabytes of weights are read.
    parser.add_function_arguments(score, skip={"system"})
    parser.add_argument("--system", type=System, required=True, help="a loader of s2sbench_callback.systems and its arguments")
    parser.add_argument(
        "--published",
        type=dict[str, float] | None,
        default=None,
        help="published accuracies in percent by <set>/<condition>, to print beside what was found",
    )
    return parser


def run(arguments: list[str]) -> None:
    """Asks benchmarks of one model and prints what came out.

    Args:
        arguments: The arguments of :func:`s2sbench_callback.score.score`, for example ``--config configs/table1/qwen2_5.yaml``.
    """
    parser = score_parser()
    chosen = parser.instantiate(parser.parse_args(arguments))
    record = score(**{key: value for key, value in vars(chosen).items() if key not in ("config", "published")})
    print(outcome(record))
    report = record.history()[-1]
    for key, percent in (chosen.published or {}).items():
        found = report.metrics.get(f"{PREFIX}/{key}/accuracy")
        print(f"{key:<28}published {percent:.1f} %, found " + (f"{100 * found:.1f} %" if found is not None else "nothing: not asked"))
