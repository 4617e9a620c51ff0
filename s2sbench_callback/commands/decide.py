"""``s2sbench decide``: replays the decision on a stage over a recorded run."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from jsonargparse import ArgumentParser

from s2sbench_callback.plateau import Plateau
from s2sbench_callback.record import find_record
from s2sbench_callback.stages.replay import replay, replay_table


def run(arguments: list[str]) -> None:
    """Says when a stage would have ended under other settings of its rule.

    Args:
        arguments: The run, the stage's number, and the settings of :class:`Plateau`.
    """
    parser = ArgumentParser(prog="s2sbench decide", description="Replays the decision on a stage over a recorded run, with other settings.")
    parser.add_argument("record", type=Path, help="folder of a run, or of its record")
    parser.add_argument("--stage", type=int, default=1, help="number of the stage, from 1")
    parser.add_class_arguments(Plateau)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    record = find_record(chosen.record)
    rule = Plateau(**{field.name: chosen[field.name] for field in fields(Plateau)})
    decisions = replay(record, rule, chosen.stage)
    if chosen.json:
        print(json.dumps([{"step": step, **decision.to_state()} for step, decision in decisions], ensure_ascii=False, allow_nan=False))
    else:
        print(replay_table(record, decisions, chosen.stage, rule))
