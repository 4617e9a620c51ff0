"""A ready dashboard for W&B: a saved view of a project, built offline and saved with one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from s2sbench_callback.prompts import CONDITION_NAMES, Condition
from s2sbench_callback.report import PREFIX
from s2sbench_callback.wandb_dashboard import STEP

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Workspace


def wandb_workspace(entity: str, project: str, sets: Mapping[str, Sequence[Condition]], name: str = "S2SBench") -> Workspace:
    """S→T over T→T, the losses of answers over those of others, what is lost, and what the stages were decided from, a section a set.

    Needs the package ``wandb-workspaces`` (``pip install 's2sbench_callback[dashboard]'``). Nothing is sent before ``save()`` of the result.

    Args:
        entity: Team or user.
        project: Where the runs are.
        sets: The conditions of each set, as in :attr:`s2sbench_callback.ProbeReport.sets`.
        name: Name of the view.

    Raises:
        ModuleNotFoundError: If that package is not installed.
    """
    import wandb_workspaces.reports.v2 as panels
    import wandb_workspaces.workspaces as workspaces

    def lines(title: str, *keys: str) -> panels.LinePlot:
        return panels.LinePlot(title=title, x=STEP, y=[f"{PREFIX}/{key}" for key in keys], title_x="optimizer step")

    def section(of: str, conditions: Sequence[Condition]) -> workspaces.Section:
        shown = [lines(f"{of}: accuracy", *(f"{of}/{condition}/accuracy" for condition in conditions))]
        shown += [
            lines(f"{of}: loss, {CONDITION_NAMES[condition]}", f"{of}/{condition}/positive_loss", f"{of}/{condition}/negative_loss")
            for condition in conditions
        ]
        shown.append(lines(f"{of}: positive minus negative", *(f"{of}/{condition}/positive_minus_negative" for condition in conditions)))
        if {"s2t", "t2t"} <= set(conditions):
            shown.append(lines(f"{of}: what is lost", f"{of}/degradation", f"{of}/intelligence_loss", f"{of}/t2t_change"))
        return workspaces.Section(name=of, panels=shown, is_open=True)

    run = workspaces.Section(
        name="Run",
        panels=[
            lines("stage", "stage"),
            lines("improvement per 1,000 steps", "decision/gain", "decision/gain_low", "decision/gain_high", "decision/min_gain"),
            lines("cost of a probe", "seconds", "share_of_training"),
            panels.MediaBrowser(media_keys=[f"{PREFIX}/panels"]),
            panels.WeavePanelSummaryTable(table_name=f"{PREFIX}/changed_sides"),
            panels.WeavePanelSummaryTable(table_name=f"{PREFIX}/summary"),
        ],
    )
    return workspaces.Workspace(entity=entity, project=project, name=name, sections=[*(section(of, asked) for of, asked in sets.items()), run])
