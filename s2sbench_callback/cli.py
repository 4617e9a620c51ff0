"""The command ``s2sbench``: what can be done outside training."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {
    "score": "ask benchmarks of saved checkpoints, or of a published system, outside training",
    "watch": "score the checkpoints of a running job as they appear, into its own dashboards",
    "report": "make one page about one or several recorded runs",
    "compare": "say whether the difference between two checkpoints, runs or sets of seeds is real",
    "validate": "list every fault of a set on disk, and audit its recordings and texts",
    "speak": "make the recordings of a written set with speech synthesisers",
    "encode": "fill the audio-token cache of a training config beforehand, resumably, on its devices",
    "stages": "print what the stages of a training config would train, and at which rates",
    "decide": "replay the decision on a stage over a recorded run, with other settings",
}

_EXAMPLES = """\
examples:
  s2sbench score 'runs/mine/version_0/checkpoints/*.ckpt'
  s2sbench score --config configs/table1/qwen2_5.yaml --system.init_args.folder=/models/Qwen2.5-7B
  s2sbench watch runs/mine/version_0 --idle_minutes 120
  s2sbench report runs/mine/version_0
  s2sbench validate S2SBench/eval_s2t.yaml --output audit.html
  s2sbench speak starter:stories-en --voice hibari --output spoken
  s2sbench compare runs/single runs/two --fail-if-worse
  s2sbench stages --config train.yaml
  s2sbench decide runs/mine/version_0/s2sbench --min_gain 0.02

exit status:
  0  done
  1  done, and the answer is bad news
  2  could not be done; the reason stands on stderr, and the result alone on stdout
"""


def main(arguments: list[str] | None = None) -> None:
    """Runs one subcommand.

    Args:
        arguments: Words after ``s2sbench``; by default those of the command line.

    Raises:
        SystemExit: With status 1 where the answer is bad news, 2 where there is none.
    """
    parser = argparse.ArgumentParser(prog="s2sbench", description=__doc__, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, add_help=False, help=text)
    chosen, rest = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    # Only the chosen one is imported: what it needs takes seconds.
    run = import_module(f"s2sbench_callback.commands.{chosen.command}").run
    try:
        status = run(rest)
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Whoever read has read enough, as `head` does; nothing is left to be flushed at the end, and the status is that of other programs.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from error
    except Exception as error:
        if not isinstance(error, _refusals()):
            raise
        print(f"s2sbench {chosen.command}: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    if status:
        raise SystemExit(status)


def _refusals() -> tuple[type[Exception], ...]:
    """What says that something cannot be done, in a sentence; Lightning's own only where it is loaded, which takes seconds."""
    lightning = sys.modules.get("lightning.pytorch.utilities.exceptions")
    return (ValueError, OSError, *((lightning.MisconfigurationException,) if lightning else ()))
