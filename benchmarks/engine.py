"""What the engine costs against the release's way, against the floor, and against lm-evaluation-harness.

A Llama of 135M random parameters on the CPU reads synthetic questions of the benchmark's shapes. Both sides of each ratio run in turn
in this process, several times; the median ratio is printed with its limit, one line each. Run it with ``make bench``.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from s2sbench_callback import Benchmark, Item
from s2sbench_callback.adapters import TextOnly
from s2sbench_callback.items import Context
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.packing import EncodedCandidate, Unit, build_row, pack
from s2sbench_callback.scoring import Questions, Scorer

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens, as sets of the benchmark have them."""

    name: str
    context: int
    candidates: int
    candidate: int
    limit: float


SHAPES = (
    Shape("S→T stories", 150, 2, 12, 0.5),
    Shape("S→T sCMMLU", 75, 4, 8, 0.25),
    Shape("T→T stories", 45, 2, 12, 0.4),
)
FLOOR_LIMIT = 1.12


class Ids:
    """Words are numbers and numbers are ids."""

    bos_token_id = None

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


def llama(vocabulary: int = 49_152, layers: int = 30) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=576,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def questions(shape: Shape, count: int, shared: bool = True, vocabulary: int = 49_152) -> Questions:
    """Random ids in the shape of a set; lengths vary by a quarter around it."""
    draw = torch.Generator().manual_seed(1)

    def ids(about: int) -> torch.Tensor:
        length = int(torch.randint(about - about // 4, about + about // 4 + 1, (), generator=draw))
        return torch.randint(3, vocabulary, (length,), generator=draw)

    units, items = [], []
    for question in range(count):
        contexts = [ids(shape.context)] * shape.candidates if shared else [ids(shape.context) for _ in range(shape.candidates)]
        endings = [ids(shape.candidate) for _ in range(shape.candidates)]
        encoded = [EncodedCandidate.of_text(question, index, ending) for index, ending in enumerate(endings)]
        if shared:
            units.append(Unit(contexts[0][:, None], tuple(encoded)))
        else:
            units += [Unit(context[:, None], (each,)) for context, each in zip(contexts, encoded, strict=True)]

        def words(tensor: torch.Tensor) -> str:
            return " ".join(map(str, tensor.tolist()))

        items.append(Item(str(question), tuple(Context(words(context)) for context in contexts), tuple(map(words, endings)), 0))
    return Questions(Benchmark("bench", "zh", tuple(items)), "t2t", tuple(units), units[0])


@torch.no_grad()
def release_way(model: LlamaForCausalLM, asked: Questions) -> list[float]:
    """One forward a candidate, batch 1, logits everywhere."""
    losses = []
    for unit in asked.units:
        for candidate in unit.candidates:
            ids = torch.cat([unit.context[:, 0], candidate.streams[:, 0]])
            logits = model(input_ids=ids[None]).logits[0]
            n = len(candidate.streams)
            losses.append(float(torch.nn.functional.cross_entropy(logits[-n - 1 : -1].float(), candidate.targets[:, 0])))
    return losses


def engine(model: LlamaForCausalLM, asked: Questions, max_tokens: int) -> list[float]:
    """Ours, as the callback runs it from the second probe on."""
    scorer = Scorer(TextOnly(Ids()), max_tokens)
    scorer._checked.add("t2t")
    table = scorer.score(LiveModel(model, model, CPU), asked)
    assert scorer.packed
    return [float(loss) for loss in table.losses[table.tokens > 0]]


@torch.no_grad()
def floor(model: LlamaForCausalLM, asked: Questions, max_tokens: int) -> None:
    """Dense forwards over as many tokens in rows of the same size, with the text head at as many positions."""
    for units in pack(asked.units, max_tokens):
        row = build_row(units)
        model(input_ids=row.row.streams[:, 0][None], logits_to_keep=torch.arange(len(row.row.targets)).clamp(max=len(row.row.streams) - 1))


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Median of the ratios of paired runs, and the median seconds of both."""
    pairs = []
    ours()
    theirs()
    for number in range(rounds):
        seconds = {}
        for name, run in (("ours", ours), ("theirs", theirs)) if number % 2 else (("theirs", theirs), ("ours", ours)):
            began = time.perf_counter()
            run()
            seconds[name] = time.perf_counter() - began
        pairs.append((seconds["ours"], seconds["theirs"]))
    return (
        statistics.median(mine / other for mine, other in pairs),
        statistics.median(mine for mine, _ in pairs),
        statistics.median(other for _, other in pairs),
    )


def line(name: str, measured: float, limit: float, ours: float | None = None, theirs: float | None = None, unit: str = "s") -> bool:
    good = measured <= limit
    detail = f"   ({ours:.2f} {unit} against {theirs:.2f} {unit})" if ours is not None and theirs is not None else ""
    print(f"{name:<72} {measured:5.2f}   limit {limit:4.2f}   {'ok' if good else 'MISSED'}{detail}", flush=True)
    return good


def against_release(model: LlamaForCausalLM, count: int, rounds: int, max_tokens: int) -> list[bool]:
    """The three shapes, and the first with nothing to share."""
    good = []
    for shape in SHAPES:
        asked = questions(shape, count)
        ours = partial(engine, model, asked, max_tokens)
        torch.testing.assert_close(ours(), release_way(model, asked), atol=1e-4, rtol=0)
        against = ratio(ours, partial(release_way, model, asked), rounds)
        good.append(line(f"{shape.name}: wall time against the release's way", *_around(shape.limit, against)))
        against = ratio(ours, partial(floor, model, asked, max_tokens), 2 * rounds)
        good.append(line(f"{shape.name}: wall time against the dense floor", *_around(FLOOR_LIMIT, against)))
    alone = questions(SHAPES[0], count, shared=False)
    against = ratio(partial(engine, model, alone, max_tokens), partial(release_way, model, alone), rounds)
    good.append(line("S→T stories, a recording for each candidate: against the release's way", *_around(0.9, against)))
    return good


def _around(limit: float, measured: tuple[float, float, float]) -> tuple[float, float, float, float]:
    return measured[0], limit, measured[1], measured[2]


def against_harness(model: LlamaForCausalLM, count: int, rounds: int, max_tokens: int) -> list[bool]:
    """The same T→T items through lm-evaluation-harness's HFLM, with its own batching."""
    try:
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM
    except ModuleNotFoundError:
        print("lm-evaluation-harness is not installed: pip install lm_eval (make bench does)")
        return [False]

    class Harness(HFLM):
        """Words are numbers here too."""

        def tok_encode(self, string: str, **_: object) -> list[int]:
            return [int(word) for word in string.split()]

    harness = Harness(pretrained=model, tokenizer=build_text_tokenizer(), batch_size=16, device="cpu", max_length=512)
    asked = questions(SHAPES[2], count)

    def theirs() -> list[float]:
        requests = [
            Instance(request_type="loglikelihood", doc={}, arguments=(context.text, f" {candidate}"), idx=index)
            for item in asked.benchmark.items
            for index, (context, candidate) in enumerate(zip(item.contexts, item.candidates, strict=True))
        ]
        found = harness.loglikelihood(requests, disable_tqdm=True)
        lengths = [len(candidate.split()) for item in asked.benchmark.items for candidate in item.candidates]
        return [-nats / length for (nats, _), length in zip(found, lengths, strict=True)]

    torch.testing.assert_close(engine(model, asked, max_tokens), theirs(), atol=1e-4, rtol=0)
    measured = ratio(lambda: engine(model, asked, max_tokens), theirs, rounds)
    return [line("T→T stories: wall time against lm-evaluation-harness (HFLM)", *_around(0.6, measured))]


def peak_memory(way: str) -> None:
    """Peak resident memory above the model's weights, in a process of its own: prints MiB."""
    vocabulary = 152_064
    model = llama(vocabulary, layers=4)
    # As many tokens in one forward on both sides.
    tokens = 512
    shape = Shape("", tokens - 36, 2, 16, 0.3) if way == "engine" else Shape("", tokens - 16, 1, 16, 0.3)
    draw = torch.Generator().manual_seed(0)
    context, ending = (torch.randint(3, vocabulary, (length,), generator=draw) for length in (shape.context, shape.candidate))
    encoded = tuple(EncodedCandidate.of_text(0, index, ending) for index in range(2))
    item = Item("0", (Context("c"),) * 2, ("a", "b"), 0)
    unit = Unit(context[:, None], encoded)
    asked = Questions(Benchmark("bench", "zh", (item,)), "t2t", (unit,), unit)
    with torch.no_grad():
        model(input_ids=torch.zeros(1, 8, dtype=torch.long), logits_to_keep=1)
    gc.collect()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak so far.
    if way == "engine":
        engine(model, asked, tokens)
    else:
        release_way(model, asked)
    print(_resident("VmHWM") - before)


def _resident(field: str) -> float:
    """MiB, from Linux's own account of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def memory() -> list[bool]:
    def measure(way: str) -> float:
        # Freed memory goes back at once, so that what is resident is what is in use.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
        done = subprocess.run([sys.executable, __file__, "--peak-memory", way], capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout.split()[-1])

    ours, theirs = measure("engine"), measure("release")
    return [line("peak memory above the weights, vocabulary 152k, equal tokens a forward", ours / theirs, 0.3, ours, theirs, "MiB")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=512, help="positions in one forward; the probe's default on a CPU")
    parser.add_argument("--peak-memory", choices=["engine", "release"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    if arguments.peak_memory:
        peak_memory(arguments.peak_memory)
        return
    model = llama()
    good = against_release(model, arguments.questions, arguments.rounds, arguments.max_tokens)
    good += against_harness(model, arguments.questions, arguments.rounds, arguments.max_tokens)
    good += memory()
    print(f"{sum(good)} of {len(good)} within their limits")


if __name__ == "__main__":
    main()
