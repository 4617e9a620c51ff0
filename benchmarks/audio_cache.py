"""What later probes cost once the audio tokens are there: recordings opened and front-end forwards, first probe against second.

Run it with ``make bench``; the embedded speech LM and benchmark are made on the way if they are not in the cache yet.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from s2sbench_callback import mini
from s2sbench_callback.cache import cache_folder
from s2sbench_callback.isolation import isolated
from s2sbench_callback.live_model import LiveModel
from s2sbench_callback.mini_world.pretraining import Pretraining, build_model, load_pretrained, mini_adapter, pretrained_weights
from s2sbench_callback.probe import Probe
from s2sbench_callback.ranks import Ranks


def main() -> None:
    torch.set_num_threads(2)
    model = build_model(Pretraining())
    load_pretrained(model, pretrained_weights(Pretraining(), cache_folder()))
    opened: list[Path] = []
    read = Path.read_bytes
    Path.read_bytes = lambda path: (opened.append(path), read(path))[1]  # type: ignore[method-assign, assignment]
    adapter, live = mini_adapter(), LiveModel(model, model, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe([mini()], cache_dir=folder)
        opened.clear()
        runs = [("first probe", probe), ("second probe", probe), ("first probe of a later run", Probe([mini()], cache_dir=folder))]
        for name, each in runs:
            opened.clear()
            before, began = each.front_end_forwards, time.perf_counter()
            with isolated(model):
                each.run(adapter, live, Ranks())
            seconds, forwards = time.perf_counter() - began, each.front_end_forwards - before
            wavs = sum(path.suffix == ".wav" for path in opened)
            print(f"{name:<28} {wavs:4d} recordings opened {forwards:4d} front-end forwards {seconds:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
