from __future__ import annotations

import random

import pytest
import torch

from s2sbench_callback.packing import EncodedCandidate, Unit, build_row, pack


def unit(question: int, context: list[int], *candidates: list[int]) -> Unit:
    def column(ids: list[int]) -> torch.Tensor:
        return torch.tensor(ids).reshape(-1, 1)

    encoded = (EncodedCandidate.of_text(question, index, torch.tensor(ids)) for index, ids in enumerate(candidates))
    return Unit(column(context), tuple(encoded))


def test_a_row_worked_out_by_hand() -> None:
    packed = build_row([unit(0, [10, 11, 12], [20, 21], [30]), unit(1, [40], [50, 51, 52], [60, 61])])
    row = packed.row
    # The last token of each candidate is never fed, so a candidate of one token takes no place at all.
    assert row.streams[:, 0].tolist() == [10, 11, 12, 20, 40, 50, 51, 60]
    assert row.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 1]
    assert row.targets.tolist() == [20, 21, 30, 50, 51, 52, 60, 61]
    assert row.sources.tolist() == [2, 3, 2, 4, 5, 6, 4, 7]
    assert packed.questions.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert packed.candidates.tolist() == [0, 0, 1, 0, 0, 0, 1, 1]
    assert row.mask is not None
    seen = [[column for column in range(8) if row.mask[place, column]] for place in range(8)]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [4], [4, 5], [4, 5, 6], [4, 7]]


def test_one_candidate_alone_needs_no_mask() -> None:
    packed = build_row([unit(0, [1, 2], [3, 4])])
    assert packed.row.mask is None
    assert packed.row.streams[:, 0].tolist() == [1, 2, 3]
    assert packed.row.sources.tolist() == [1, 2]


def test_streams_of_different_widths_are_filled_with_silence() -> None:
    speech = torch.tensor([[-1, 5, 6], [-1, 7, 8]])
    text = EncodedCandidate.of_text(0, 0, torch.tensor([3, 4]))
    assert build_row([Unit(speech, (text,))]).row.streams.tolist() == [[-1, 5, 6], [-1, 7, 8], [3, -1, -1]]


def test_every_unit_is_packed_once_within_the_budget() -> None:
    draw = random.Random(0)
    units = [unit(q, [1] * draw.randint(1, 40), [2] * draw.randint(1, 9), [3] * draw.randint(1, 9)) for q in range(100)]
    units.append(unit(100, [1] * 500, [2]))
    rows = pack(units, 64)
    assert sorted(each.candidates[0].question for row in rows for each in row) == list(range(101))
    for row in rows:
        assert sum(each.tokens for each in row) <= 64 or len(row) == 1
        packed = build_row(row)
        assert len(packed.row.streams) == sum(each.tokens for each in row)
    # First fit is never further than 70 % above what fits at best.
    assert len(rows) <= 1.7 * sum(each.tokens for each in units) / 64 + 1


def test_budget_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        pack([], 0)
