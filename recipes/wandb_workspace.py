"""Saves a ready dashboard in a W&B project, for the sets that a recorded run was asked.

Needs:    pip install 's2sbench_callback[dashboard]', and wandb login
Run it:   python recipes/wandb_workspace.py ENTITY PROJECT runs/mine/version_0
"""

from __future__ import annotations

import argparse
from pathlib import Path

from s2sbench_callback.record import find_record
from s2sbench_callback.wandb_workspace import wandb_workspace


def main() -> None:
    """Builds the view and saves it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entity", help="team or user")
    parser.add_argument("project", help="where the runs are")
    parser.add_argument("run", type=Path, help="folder of a run that was probed")
    chosen = parser.parse_args()
    view = wandb_workspace(chosen.entity, chosen.project, find_record(chosen.run).history()[-1].sets)
    view.save()
    print(view.url)


if __name__ == "__main__":
    main()
