"""Groups, rates and states of optimizers through stages, against a plain optimizer that never changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer, lr_scheduler
from transformers import get_cosine_schedule_with_warmup

from s2sbench_callback.stages.carrying import carry_by_name
from s2sbench_callback.stages.optimizers import StageOptimizers
from s2sbench_callback.stages.selection import Learner, Selection
from s2sbench_callback.stages.stage import Stage

OWN = 0.1

SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "transformers": lambda o: get_cosine_schedule_with_warmup(o, 3, 20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12),
    "cosine_with_floor": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=12, eta_min=OWN / 3),
    "restarts_with_floor": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=4, eta_min=OWN / 3),
    "plateau_with_floor": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5, min_lr=OWN / 3),
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=OWN, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, base_lr=OWN / 10, max_lr=OWN, step_size_up=3, cycle_momentum=False),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, T_max=9)], milestones=[4]
    ),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.audio, self.body, self.rest = (nn.Linear(2, 2) for _ in range(3))


def selections(net: Net, *stages: tuple[dict[str, float | None], dict[str, Any]]) -> list[Selection]:
    """Stages by what learns (prefix and rate) and other settings."""
    made = []
    for number, (rates, settings) in enumerate(stages):
        learners = {
            name: Learner(name, parameter, None, rates[name.split(".")[0]])
            for name, parameter in net.named_parameters()
            if name.split(".")[0] in rates
        }
        lr = next((rate for rate in rates.values() if rate), None)
        made.append(Selection(Stage(f"stage {number}", ["lm_body"], lr=lr, **settings), learners))
    return made


def names(net: nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in net.named_parameters()}


def advance(optimizer: Optimizer, scheduler: Any, step: int) -> None:
    optimizer.step()
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0 if step % 2 else 0.5)
    else:
        scheduler.step()


def group_of(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    (group,) = [group for group in optimizer.param_groups if any(each is parameter for each in group["params"])]
    return group


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("restart", [False, True])
def test_each_group_follows_the_same_curve_from_its_stages_rate(kind: str, restart: bool) -> None:
    plain = SGD(Net().parameters(), lr=OWN)
    curve_maker = SCHEDULERS[kind](plain)
    curve = []
    for step in range(12):
        curve.append(plain.param_groups[0]["lr"])
        advance(plain, curve_maker, step)

    net = Net()
    optimizer = SGD(net.parameters(), lr=OWN)
    scheduler = SCHEDULERS[kind](optimizer)
    # The second stage trains the body anew and gives audio another rate; the rest keeps the optimizer's own.
    plan = selections(net, ({"audio": 0.02, "rest": None}, {}), ({"audio": 0.005, "body": 0.5, "rest": None}, {}))
    staged = StageOptimizers([optimizer], [scheduler], names(net), plan)
    assert len(optimizer.param_groups) == 3
    staged.enter(0, restart=False)
    for step in range(12):
        if step == 5:
            staged.enter(1, restart=restart)
        expected = curve[step - 5] if restart and step >= 5 else curve[step]
        audio, body, rest = (group_of(optimizer, part.weight)["lr"] for part in (net.audio, net.body, net.rest))
        assert audio == pytest.approx(expected * (0.005 if step >= 5 else 0.02) / OWN)
        assert rest == pytest.approx(expected)
        if step >= 5:
            assert body == pytest.approx(expected * 0.5 / OWN)
        advance(optimizer, scheduler, step - 5 if restart and step >= 5 else step)
        # Every scheduler goes on to have one entry a group.
        for each in (scheduler, *getattr(scheduler, "_schedulers", ())):
            assert all(len(kept) == 3 for key in ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs") if (kept := getattr(each, key, None)))


def test_without_a_schedule_the_rate_is_the_stages_to_the_last_digit() -> None:
    net = Net()
    optimizer = SGD(net.parameters(), lr=0.3)
    staged = StageOptimizers([optimizer], [], names(net), selections(net, ({"audio": 1e-4}, {}), ({"audio": 3e-7, "body": 7e-5}, {})))
    staged.enter(0, restart=False)
    assert group_of(optimizer, net.audio.weight)["lr"] == 1e-4
    staged.enter(1, restart=False)
    staged.enter(1, restart=False)
    assert group_of(optimizer, net.audio.weight)["lr"] == 3e-7
    assert group_of(optimizer, net.body.bias)["lr"] == 7e-5
    staged.enter(1, restart=False, lowered=0.5)
    assert group_of(optimizer, net.body.bias)["lr"] == 3.5e-5
    assert staged.rate_of(net.rest.weight) == 0.3


def test_nothing_is_touched_where_no_stage_names_a_rate() -> None:
    net = Net()
    optimizer = AdamW([{"params": net.audio.parameters(), "lr": 0.5}, {"params": [*net.body.parameters(), *net.rest.parameters()]}])
    before = [dict(group) for group in optimizer.param_groups]
    staged = StageOptimizers([optimizer], [], names(net), selections(net, ({"audio": None}, {}), ({"audio": None, "body": None}, {})))
    staged.enter(1, restart=False)
    assert [dict(group) for group in optimizer.param_groups] == before


def test_a_warm_up_needs_groups_of_its_own_and_named_parameters_keep_their_names() -> None:
    net = Net()
    optimizer = AdamW(list(net.named_parameters()), lr=OWN)
    StageOptimizers([optimizer], [], names(net), selections(net, ({"audio": None}, {}), ({"audio": None, "body": None}, {"warm_up_steps": 3})))
    assert [group["param_names"] for group in optimizer.param_groups] == [
        ["audio.weight", "audio.bias"],
        ["body.weight", "body.bias"],
        ["rest.weight", "rest.bias"],
    ]


def test_what_a_filter_left_out_is_added_at_the_start_with_its_stages_rate() -> None:
    net = Net()
    optimizer = AdamW(net.audio.parameters(), lr=OWN, weight_decay=0.3)
    scheduler = SCHEDULERS["transformers"](optimizer)
    staged = StageOptimizers([optimizer], [scheduler], names(net), selections(net, ({"audio": None}, {}), ({"audio": None, "body": 0.01}, {})))
    assert staged.added == ["body.weight", "body.bias"]
    staged.enter(1, restart=False)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    body = group_of(optimizer, net.body.weight)
    assert body["lr"] == pytest.approx(0.01)
    assert body["weight_decay"] == 0.3
    assert group_of(optimizer, net.audio.weight)["lr"] == pytest.approx(OWN)


def test_what_no_optimizer_has_and_no_stage_gives_a_rate_is_an_error() -> None:
    net = Net()
    plan = selections(net, ({"audio": None}, {}), ({"audio": None, "body": None}, {}))
    message = (
        r"stage 'stage 1' trains body.weight and 1 more parameter\(s\) that no optimizer has, and names no learning rate.*give the optimizer all"
    )
    with pytest.raises(ValueError, match=message):
        StageOptimizers([AdamW(net.audio.parameters())], [], names(net), plan)
    plan = selections(net, ({"audio": 0.1}, {}), ({"audio": 0.1, "body": 0.1}, {}))
    with pytest.raises(ValueError, match="there are 2 optimizers; give one of them these parameters"):
        StageOptimizers([AdamW(net.audio.parameters()), AdamW(net.rest.parameters())], [], names(net), plan)


def test_states_find_their_parameters_by_name_in_other_groups() -> None:
    def make(*stages: Any) -> tuple[Net, AdamW, Any, StageOptimizers]:
        net = Net()
        optimizer = AdamW(net.parameters(), lr=OWN)
        scheduler = SCHEDULERS["lambda"](optimizer)
        return net, optimizer, scheduler, StageOptimizers([optimizer], [scheduler], names(net), selections(net, *stages))

    net, optimizer, scheduler, staged = make(({"rest": 0.2}, {}), ({"audio": 0.3, "rest": 0.3}, {}))
    staged.enter(1, restart=False)
    for _ in range(3):
        (net.audio(torch.ones(1, 2)) + net.rest(torch.ones(1, 2))).sum().backward()
        optimizer.step()
        scheduler.step()
    checkpoint = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [scheduler.state_dict()]}

    other, resumed, curve, again = make(({"body": 0.2}, {}), ({"audio": 0.3, "rest": 0.3}, {}))
    assert again.names() != staged.names()
    carry_by_name(checkpoint, staged.names(), again.names())
    resumed.load_state_dict(checkpoint["optimizer_states"][0])
    curve.load_state_dict(checkpoint["lr_schedulers"][0])
    again.enter(1, restart=False)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert set(optimizer.state.get(one, {})) == set(resumed.state.get(two, {}))
        for key, value in optimizer.state.get(one, {}).items():
            assert torch.equal(value, resumed.state[two][key])
        if any(one is each for each in (*net.audio.parameters(), *net.rest.parameters())):
            assert group_of(resumed, two)["lr"] == group_of(optimizer, one)["lr"]
    curve.step()
    scheduler.step()
    assert group_of(resumed, other.rest.weight)["lr"] == pytest.approx(group_of(optimizer, net.rest.weight)["lr"])


def test_a_checkpoint_of_a_run_without_stages_finds_its_groups() -> None:
    net = Net()
    plain = AdamW(net.parameters(), lr=OWN)
    net.body(torch.ones(1, 2)).sum().backward()
    plain.step()
    checkpoint = {"optimizer_states": [plain.state_dict()], "lr_schedulers": []}

    other = Net()
    optimizer = AdamW(other.parameters(), lr=OWN)
    staged = StageOptimizers([optimizer], [], names(other), selections(other, ({"audio": 0.2}, {}), ({"audio": 0.2, "body": 0.3}, {})))
    carry_by_name(checkpoint, staged.names_as_configured, staged.names())
    optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    staged.enter(1, restart=False)
    assert torch.equal(optimizer.state[other.body.weight]["exp_avg"], plain.state[net.body.weight]["exp_avg"])
    assert group_of(optimizer, other.body.weight)["lr"] == 0.3


def test_one_tensor_for_all_groups_is_scaled_once_in_each() -> None:
    net, given = Net(), torch.tensor(OWN)
    optimizer = AdamW([{"params": net.body.weight}, {"params": net.body.bias}], lr=given)
    staged = StageOptimizers([optimizer], [], names(net), selections(net, ({"body": 1e-4}, {})))
    staged.enter(0, restart=False)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([1e-4, 1e-4])
    assert float(given) == pytest.approx(OWN)


def test_a_rate_that_no_stage_names_any_longer_is_taken_back() -> None:
    def make(rate: float | None) -> tuple[Net, Optimizer, StageOptimizers]:
        net = Net()
        optimizer = AdamW([{"params": part.parameters()} for part in (net.audio, net.body, net.rest)], lr=OWN)
        return net, optimizer, StageOptimizers([optimizer], [], names(net), selections(net, ({"audio": None, "body": rate}, {})))

    _, first, staged = make(1e-5)
    staged.enter(0, restart=False)
    net, second, again = make(None)
    second.load_state_dict(first.state_dict())
    assert group_of(second, net.body.weight)["lr"] == 1e-5
    again.enter(0, restart=False)
    assert [group["lr"] for group in second.param_groups] == [OWN] * 3
    assert not any("stage_lr" in group for group in second.param_groups)


def test_optimizers_and_schedulers_that_cannot_have_their_groups_split_are_refused_by_name() -> None:
    class ZeroRedundancyOptimizer(SGD):
        """Known by its name."""

    class Homemade:
        optimizer: Optimizer

    net = Net()
    plan = selections(net, ({"audio": 0.1}, {}), ({"audio": 0.1, "body": 0.2}, {}))
    for optimizer, message in (
        (ZeroRedundancyOptimizer(net.parameters(), lr=OWN), "ZeroRedundancyOptimizer shares out its parameters over the ranks"),
        (LBFGS(net.parameters()), "LBFGS knows only one group, so that none can be added; use another optimizer, or leave lr and warm_up_steps out"),
    ):
        with pytest.raises(ValueError, match=message):
            StageOptimizers([optimizer], [], names(net), plan)
    unstaged = selections(net, ({"audio": None}, {}), ({"audio": None, "body": None}, {}))
    StageOptimizers([LBFGS(net.parameters())], [], names(net), unstaged)
    with pytest.raises(ValueError, match=r"the scheduler Homemade is not a torch.optim.lr_scheduler.LRScheduler"):
        StageOptimizers([SGD(net.parameters(), lr=OWN)], [Homemade()], names(net), plan)


def test_each_optimizers_schedulers_are_rearranged_by_its_own_groups() -> None:
    def state(*rates: float) -> dict[str, Any]:
        return {"base_lrs": list(rates)}

    head, body = [["head"]], [["a", "b"]]
    checkpoint = {
        "optimizer_states": [
            {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
            {"state": {}, "param_groups": [{"lr": 0.2, "params": [0, 1]}]},
        ],
        "lr_schedulers": [state(0.2), state(0.1)],
    }
    carry_by_name(checkpoint, [head, body], [head, [["a"], ["b"]]], owners=[1, 0])
    assert checkpoint["lr_schedulers"] == [state(0.2, 0.2), state(0.1)]
