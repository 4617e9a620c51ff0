"""Small versions of everything, made once for the whole session."""

from __future__ import annotations

import os
import re
import sys

os.environ["WANDB_MODE"] = "offline"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from collections.abc import Iterator
from pathlib import Path

# Its logger keeps the stderr of its first import, which must not be one that a test captures.
import lightning.pytorch  # noqa: F401
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from s2sbench_callback import Benchmark, mini
from s2sbench_callback.cli import main
from s2sbench_callback.mini_world.model import MiniSpeechLM
from s2sbench_callback.mini_world.pretraining import Pretraining, build_model, load_pretrained, pretrained_weights
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer

TINY = Pretraining(steps=3, batch_size=4, renderings=1, hidden_size=64, layers=2, codebook_sizes=(16, 8, 8))


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S2SBENCH_CACHE", str(cache_dir))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tests run two at a time; threads that wait for each other on a busy core cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_wandb_run() -> Iterator[None]:
    """A run that a test leaves open would be taken by the next test's logger."""
    yield
    wandb = sys.modules.get("wandb")
    if wandb is not None and wandb.run is not None:
        wandb.finish()


@pytest.fixture(scope="session")
def mini_set(cache_dir: Path) -> Benchmark:
    """Twelve spoken questions of the embedded benchmark."""
    return mini(questions=12, cache_dir=cache_dir)


@pytest.fixture
def tiny_speech_lm(cache_dir: Path) -> MiniSpeechLM:
    """The embedded speech LM at its smallest, with a fitted speech tokenizer."""
    torch.manual_seed(0)
    model = build_model(TINY)
    load_pretrained(model, pretrained_weights(TINY, cache_dir))
    return model.eval()


@pytest.fixture
def tiny_qwen2() -> Qwen2ForCausalLM:
    """A random Qwen2 that reads the embedded world's tokenizer."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(build_text_tokenizer()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=64,
    )
    return Qwen2ForCausalLM(config).eval()


def refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says on stderr why it cannot be done, prints nothing else there would be to read, and ends with status 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert re.search(message, printed.err), printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
