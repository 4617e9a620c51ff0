from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from s2sbench_callback import Plateau, Stage, dry_run, single_stage, two_stage
from s2sbench_callback.adapters import Adapter, Rows, SummedCodebooks
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import mini_adapter
from s2sbench_callback.mini_world.text_tokenizer import AUDIO_END, AUDIO_START, build_text_tokenizer
from s2sbench_callback.stages.selection import Parts, Selection, warn_of_base_layers

AUDIO = ("model.audio_embed_layers.", "audio_head.")


class Shared(SummedCodebooks):
    """As if audio tokens lived in the text vocabulary, from row 60 on, and in the text head."""

    def __init__(self) -> None:
        super().__init__(build_text_tokenizer(), AUDIO_START, AUDIO_END)

    def roles(self, model: nn.Module) -> dict:  # type: ignore[type-arg]
        rows = model.lm_head.weight.shape[0]  # type: ignore[union-attr]
        return {
            **super().roles(model),
            "lm_embedding": (Rows("model.embed_tokens.weight", 0, 60),),
            "audio_embedding": ("model.audio_embed_layers.", Rows("model.embed_tokens.weight", 60, rows)),
            "lm_head": (Rows("lm_head.weight", 0, 60),),
            "audio_head": ("audio_head.", Rows("lm_head.weight", 60, rows)),
        }


def select(model: nn.Module, *stages: Stage, root: nn.Module | None = None, adapter: SummedCodebooks | None = None) -> list[Selection]:
    return Parts(root or model, model, adapter or mini_adapter()).select(stages)


def test_the_papers_stages(tiny_speech_lm: MiniSpeechLM) -> None:
    first, second = select(tiny_speech_lm, *two_stage(first_steps=5))
    assert first.learners
    assert all(name.startswith(AUDIO) for name in first.learners)
    names = {name for name, _ in tiny_speech_lm.named_parameters()}
    assert names - set(second.learners) == {"model.embed_tokens.weight", "lm_head.weight"}
    (everything,) = select(tiny_speech_lm, *single_stage())
    assert set(everything.learners) == names


def test_patterns_and_freeze_work_on_names_inside_and_outside_the_language_model(tiny_speech_lm: MiniSpeechLM) -> None:
    root = nn.ModuleDict({"lm": tiny_speech_lm, "projector": nn.Linear(2, 2), "teacher": nn.Linear(2, 2)})
    stage = Stage("s", ["model.layers.*", "projector.*"], freeze=["lm.model.layers.0.*", "model.*.bias", "projector.bias"])
    (found,) = select(tiny_speech_lm, stage, root=root)
    assert set(found.learners) == {
        f"lm.{name}" for name, _ in tiny_speech_lm.named_parameters() if name.startswith("model.layers.1.") and not name.endswith("bias")
    } | {"projector.weight"}
    governed = Parts(root, tiny_speech_lm, mini_adapter()).governed([stage])
    assert {name for name in governed if not name.startswith("lm.")} == {"projector.weight", "projector.bias"}


def test_wrappers_do_not_change_names(tiny_speech_lm: MiniSpeechLM) -> None:
    expected = set(select(tiny_speech_lm, two_stage(5)[1])[0].learners)
    tiny_speech_lm.model.layers[1] = torch.compile(tiny_speech_lm.model.layers[1])  # type: ignore[assignment]
    assert any("_orig_mod" in name for name, _ in tiny_speech_lm.named_parameters())
    assert set(select(tiny_speech_lm, two_stage(5)[1])[0].learners) == expected


def test_rows_of_a_shared_matrix(tiny_speech_lm: MiniSpeechLM) -> None:
    audio, text = select(tiny_speech_lm, Stage("a", ["audio_embedding"]), Stage("t", ["lm_embedding", "audio_embedding"]), adapter=Shared())
    mask = audio.learners["model.embed_tokens.weight"].rows
    assert mask is not None
    assert not mask[:60].any()
    assert mask[60:].all()
    assert audio.learners["model.embed_tokens.weight"].size == (len(mask) - 60) * tiny_speech_lm.config.hidden_size
    assert text.learners["model.embed_tokens.weight"].rows is None
    (without,) = select(tiny_speech_lm, Stage("f", ["model.embed_tokens.*"], freeze=[Rows("model.embed_tokens.weight", 0, 3)]))
    rows = without.learners["model.embed_tokens.weight"].rows
    assert rows is not None
    np.testing.assert_array_equal(np.flatnonzero(~rows), [0, 1, 2])


def test_a_tied_matrix_learns_under_all_its_names_or_none(tiny_speech_lm: MiniSpeechLM) -> None:
    tiny_speech_lm.lm_head.weight = tiny_speech_lm.model.embed_tokens.weight
    (found,) = select(tiny_speech_lm, *single_stage())
    assert "lm_head.weight" not in found.learners
    assert "model.embed_tokens.weight" in found.learners
    with pytest.raises(ValueError, match=r"model.embed_tokens.weight and lm_head.weight are one tied matrix; a stage must train both or neither"):
        select(tiny_speech_lm, Stage("s", ["lm_head"]))
    with pytest.raises(ValueError, match="are one tied matrix"):
        select(tiny_speech_lm, Stage("s", ["audio_embedding"]), adapter=Shared())
    (rows,) = select(tiny_speech_lm, Stage("s", ["audio_embedding", "audio_head"]), adapter=Shared())
    assert rows.learners["model.embed_tokens.weight"].rows is not None


class InTheVocabulary(Shared):
    """Audio tokens in the middle of a tied matrix, and a model that has no head of its own for them."""

    def roles(self, model: nn.Module) -> dict:  # type: ignore[type-arg]
        rows = model.lm_head.weight.shape[0]  # type: ignore[union-attr]
        matrix = "model.embed_tokens.weight"
        return {
            "audio_embedding": (Rows(matrix, 20, 30), Rows(matrix, 40, 50)),
            "lm_embedding": (Rows(matrix, 0, 20), Rows(matrix, 30, 40), Rows(matrix, 50, rows)),
            "lm_body": ("model.layers.", "model.norm.", "model.audio_embed_layers.", "audio_head."),
        }


def test_several_rows_of_one_matrix_and_a_head_that_is_the_embedding(tiny_speech_lm: MiniSpeechLM) -> None:
    tiny_speech_lm.lm_head.weight = tiny_speech_lm.model.embed_tokens.weight
    audio = [*range(20, 30), *range(40, 50)]
    for parts in (["audio_embedding"], ["audio_head"], ["audio_embedding", "audio_head"]):
        (found,) = select(tiny_speech_lm, Stage("s", parts), adapter=InTheVocabulary())
        assert list(found.learners) == ["model.embed_tokens.weight"]
        rows = found.learners["model.embed_tokens.weight"].rows
        assert rows is not None
        assert np.flatnonzero(rows).tolist() == audio
    (everything,) = select(tiny_speech_lm, Stage("s", ["audio_embedding", "lm_embedding"]), adapter=InTheVocabulary())
    assert everything.learners["model.embed_tokens.weight"].rows is None
    (text,) = select(tiny_speech_lm, Stage("s", ["lm_head"]), adapter=InTheVocabulary())
    assert not text.learners["model.embed_tokens.weight"].rows[audio].any()  # type: ignore[index]


class WithoutAnAudioHead(SummedCodebooks):
    """As a model that hears through a projector and only writes."""

    def __init__(self) -> None:
        super().__init__(build_text_tokenizer(), AUDIO_START, AUDIO_END)

    def roles(self, model: nn.Module) -> dict:  # type: ignore[type-arg]
        roles = dict(super().roles(model))
        roles["lm_body"] = (*roles["lm_body"], *roles.pop("audio_head"))
        return roles


def test_a_part_may_be_left_out_where_the_model_has_none(tiny_speech_lm: MiniSpeechLM) -> None:
    first, second = select(tiny_speech_lm, *two_stage(5, lr=1e-3, lm_lr=1e-4), adapter=WithoutAnAudioHead())
    assert all(name.startswith("model.audio_embed_layers.") for name in first.learners)
    assert second.learners["audio_head.0.weight"].lr == 1e-4
    with pytest.raises(ValueError, match=r"the role 'audio_head' has no parameters in MiniSpeechLM; write 'audio_head\?' where"):
        select(tiny_speech_lm, Stage("s", ["audio_embedding", "audio_head"]), adapter=WithoutAnAudioHead())
    with pytest.raises(ValueError, match="nothing would learn"):
        select(tiny_speech_lm, Stage("s", ["audio_head?"]), adapter=WithoutAnAudioHead())


def test_rates_by_part(tiny_speech_lm: MiniSpeechLM) -> None:
    stage = Stage("s", ["audio_head", "lm_body"], lr={"lm_body": 1e-5, "*.layers.1.*": 2e-5})
    (found,) = select(tiny_speech_lm, stage)
    rates = {name: learner.lr for name, learner in found.learners.items()}
    assert rates["audio_head.0.weight"] is None
    assert rates["model.norm.weight"] == rates["model.layers.0.mlp.up_proj.weight"] == 1e-5
    assert rates["model.layers.1.mlp.up_proj.weight"] == 2e-5


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (Stage("s", ["frontend", "lm_head"], freeze=["lm_head", "frontend"]), "stage 's': the role 'frontend' has no parameters in MiniSpeechLM"),
        (
            Stage("s", ["model.layer.*"]),
            r"stage 's': no parameter matches 'model.layer.\*'; near names are .*model.layers.*the roles are audio_embedding",
        ),
        (Stage("s", ["lm_head"], freeze=["lm_heat.*"]), r"no parameter matches 'lm_heat.\*'; near names are lm_head"),
        (Stage("s", ["lm_head"], freeze=["lm_head"]), "stage 's': freeze takes away all that train names"),
        (Stage("s", ["lm_head"], lr={"lm_body": 1.0}), "stage 's': lr names 'lm_body', of which nothing learns in this stage"),
        (Stage("s", [Rows("lm_head.weights", 0, 1)]), r"there is no parameter 'lm_head.weights'; near names are lm_head.weight"),
        (Stage("s", [Rows("lm_head.weight", 5, 100_000)]), r"lm_head.weight\[5:100000\] is no range of rows of lm_head.weight, which has \d+"),
    ],
)
def test_what_matches_nothing_is_named_with_what_is_near(stage: Stage, message: str, tiny_speech_lm: MiniSpeechLM) -> None:
    with pytest.raises(ValueError, match=message):
        select(tiny_speech_lm, stage)


def test_one_matrix_has_one_rate(tiny_speech_lm: MiniSpeechLM) -> None:
    stage = Stage("s", ["audio_embedding", "lm_embedding"], lr={"audio_embedding": 1e-3, "lm_embedding": 1e-5})
    with pytest.raises(ValueError, match=r"model.embed_tokens.weight is shared by several roles, and one matrix can only have one learning rate"):
        select(tiny_speech_lm, stage, adapter=Shared())


def test_integers_cannot_learn(tiny_speech_lm: MiniSpeechLM) -> None:
    tiny_speech_lm.lm_head.weight = nn.Parameter(tiny_speech_lm.lm_head.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"stage 's' trains lm_head.weight, which is torch.int8 and cannot learn"):
        select(tiny_speech_lm, Stage("s", ["lm_head"]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage("s", ["lm_brain"]), "stage 's': unknown role 'lm_brain'; the roles are audio_embedding"),
        (lambda: Stage("s", []), "stage 's': train is empty"),
        (lambda: Stage("s", ["lm_body"], steps=0), "steps must be at least 1, got 0"),
        (lambda: Stage("s", ["lm_body"], tokens=-5), "tokens must be at least 1, got -5"),
        (lambda: Stage("s", ["lm_body"], lr=0.0), "a learning rate must be above 0 and finite, got 0.0"),
        (lambda: Stage("s", ["lm_body"], lr={"lm_body": -1.0}), "a learning rate must be above 0 and finite, got -1.0"),
        (lambda: Stage("s", ["lm_body"], lr={"lm_brain": 1.0}), "lr names 'lm_brain', which is no role"),
        (lambda: Stage("s", ["lm_body"], lr=float("nan")), "a learning rate must be above 0 and finite, got nan"),
        (lambda: two_stage(5, lm_lr=0.0), "stage 'language model too': a learning rate must be above 0 and finite, got 0.0"),
        (lambda: two_stage(5, lr=0.0), "stage 'audio parts': a learning rate must be above 0 and finite, got 0.0"),
        (lambda: two_stage(0), "steps must be at least 1, got 0"),
        (lambda: Stage("s", "lm_body"), r"stage 's': train is a list of parts; write train=\['lm_body'\]"),
        (lambda: Stage("s", ["lm_body"], freeze="*.bias"), r"stage 's': freeze is a list of parts; write freeze=\['\*.bias'\]"),
        (lambda: Stage("s", ["lm_body"], warm_up_steps=-1), "warm_up_steps must be at least 0, got -1"),
        (lambda: Stage("s", ["lm_body"], schedulers="again"), "schedulers must be 'continue' or 'restart', got 'again'"),  # type: ignore[arg-type]
        (lambda: Stage("s", ["lm_body"], until="bedtime"), "until must be a Plateau or 'hand', got 'bedtime'"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


def test_the_dry_run_counts_by_hand_and_freezes_nothing(tiny_speech_lm: MiniSpeechLM) -> None:
    before = [parameter.requires_grad for parameter in tiny_speech_lm.parameters()]
    root = nn.ModuleDict({"lm": tiny_speech_lm, "projector": nn.Linear(3, 2)})
    table = dry_run(two_stage(until=Plateau(min_gain=0.5), lr=1e-3, lm_lr=1e-5), root, adapter=mini_adapter(), locator="lm")
    codes, width = (16, 8, 8), tiny_speech_lm.config.hidden_size
    lines = {line.split("  ")[0]: line for line in table.splitlines()}
    assert lines["1 audio parts"].split()[-4:] == ["audio_embedding", "3", f"{sum(codes) * width:,}", "0.001"]
    assert "plateau of s2t positive_minus_negative, min_gain 0.5" in lines["1 audio parts"]
    assert table.count("(frozen)") == 2
    body = sum(p.numel() for n, p in tiny_speech_lm.named_parameters() if n.startswith(("model.layers.", "model.norm.")))
    assert f"{body:,}  1e-05" in table
    assert "Left as they are: 2 tensors (8 numbers) outside the language model" in table
    assert [parameter.requires_grad for parameter in tiny_speech_lm.parameters()] == before


def test_a_role_that_unfreezes_what_peft_keeps_frozen_gives_a_warning() -> None:
    class Adapted:
        def roles(self, model: nn.Module) -> dict[str, tuple[str, ...]]:
            return {"lm_body": ("body.",)}

    body = nn.ModuleDict({"base_layer": nn.Linear(2, 2), "lora_A": nn.Linear(2, 1)})
    model = nn.ModuleDict({"body": body})
    parts = Parts(model, model, cast(Adapter, Adapted()))
    message = r"stage 's' trains body.base_layer.weight and 1 more .* the role 'lm_body' holds them; .* write '\*lora_\*' in its place"
    with pytest.warns(UserWarning, match=message):
        warn_of_base_layers(parts, parts.select([Stage("s", ["lm_body"])]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_base_layers(parts, parts.select([Stage("s", ["lm_body"], freeze=["*.base_layer.*"]), Stage("t", ["body.base_layer.*"])]))
