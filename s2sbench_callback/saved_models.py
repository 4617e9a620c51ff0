"""A model outside its training: built from the run's config, a function or a Hugging Face folder, with a checkpoint's weights."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import lightning.pytorch as pl
import yaml
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from transformers import AutoConfig

from s2sbench_callback.adapters import Adapter, find_adapter, find_language_model
from s2sbench_callback.adapters.find import Locator
from s2sbench_callback.averaged_weights import Weights
from s2sbench_callback.callback import S2SBenchCallback
from s2sbench_callback.checkpoints import BrokenCheckpoint, Checkpoint
from s2sbench_callback.systems import Precision, System, causal_lm, moshi, qwen_audio, voxtral

_SHOWN = 4


class Loader(Protocol):
    """Gives a model with the weights of a checkpoint."""

    def __call__(self, checkpoint: Checkpoint) -> System:
        """The system, which may be the same one with other weights.

        Raises:
            BrokenCheckpoint: If the weights cannot be read or do not fit.
        """
        ...


class Rebuilt:
    """A module that was built without a training, and takes the weights of one checkpoint after the other.

    Args:
        module: A LightningModule, or the language model itself.
        adapter: How it is read; found from its class by default.
        locator: Where the language model is in it.
        trust: Whether checkpoints may hold objects besides tensors and plain data.
        weights: Which, where Lightning's averaging has saved both.
    """

    def __init__(
        self,
        module: nn.Module,
        adapter: Adapter | None = None,
        locator: Locator | None = None,
        trust: bool = False,
        weights: Weights = "current",
    ) -> None:
        self._module = module
        self._weights = weights
        self._adapter = adapter
        self._locator = locator
        self._trust = trust
        if isinstance(module, pl.LightningModule):
            module.configure_model()

    def __call__(self, checkpoint: Checkpoint) -> System:
        """The module with these weights."""
        put_in(self._module, checkpoint.state_dict(self._trust, self._weights), checkpoint.path)
        model = find_language_model(self._module, self._locator)
        self._adapter = self._adapter or find_adapter(self._module, model)
        return System(model, self._adapter, root=self._module)


def from_config(path: Path, trust: bool = False) -> tuple[Rebuilt, S2SBenchCallback | None]:
    """What a run's LightningCLI config says of its model and its probe; trainer, data and other callbacks are not made.

    Args:
        path: The ``config.yaml`` that LightningCLI leaves beside a run.
        trust: As for :class:`Rebuilt`.

    Returns:
        The model without weights, and the probe, where the config has one.

    Raises:
        ValueError: If the config names no model by its class.
    """
    content = training_config(path)
    if content is None or not isinstance(content["model"], dict) or "class_path" not in content["model"]:
        raise ValueError(f"{path} has no model with a class_path; name a function that makes the model: --model package.function")
    probes = [each for each in _callbacks(content) if isinstance(each, dict) and str(each.get("class_path", "")).endswith("S2SBenchCallback")]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(pl.LightningModule, "model", required=True)
    parser.add_argument("--probe", type=S2SBenchCallback | None, default=None)
    made = parser.instantiate(parser.parse_object({"model": content["model"], "probe": probes[0] if probes else None}))
    probe: S2SBenchCallback | None = made.probe
    if probe is None:
        return Rebuilt(made.model, trust=trust), None
    return Rebuilt(made.model, probe.adapter, probe.locator, trust, probe.weights), probe


def training_config(path: Path) -> dict[str, Any] | None:
    """The content of a LightningCLI config, or ``None`` if the file is another kind of YAML.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no YAML.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    return content if isinstance(content, dict) and "model" in content and "system" not in content else None


def max_steps(content: dict[str, Any]) -> int | None:
    """Steps after which a config's training ends, where it says so."""
    trainer = content.get("trainer")
    steps = trainer.get("max_steps") if isinstance(trainer, dict) else None
    return steps if isinstance(steps, int) and steps > 0 else None


def from_function(path: str, trust: bool = False) -> Rebuilt:
    """A model from a function without arguments.

    Args:
        path: Dotted path of a function that returns a module, or of a module's class.
        trust: As for :class:`Rebuilt`.

    Raises:
        ValueError: If there is no such function, or it returns something else.
    """
    name, _, attribute = path.rpartition(".")
    try:
        function = getattr(import_module(name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--model {path} is no function that can be imported: {error}") from error
    made = function()
    if isinstance(made, System):
        return Rebuilt(made.model, made.adapter, ".", trust)
    if not isinstance(made, nn.Module):
        raise ValueError(f"--model {path} returned {type(made).__name__}; it must return a torch module, or a System")
    return Rebuilt(made, trust=trust)


class HuggingFace:
    """Folders that ``transformers`` reads by itself.

    Args:
        dtype: Precision of the weights.
    """

    def __init__(self, dtype: Precision = "bfloat16") -> None:
        self._dtype = dtype

    def __call__(self, checkpoint: Checkpoint) -> System:
        """The folder's model and tokenizer."""
        if checkpoint.kind != "huggingface":
            raise ValueError(
                f"{checkpoint.path} holds weights alone: name the run's config.yaml with --config, or a function that makes the model with --model"
            )
        folder = str(checkpoint.path)
        try:
            kind = AutoConfig.from_pretrained(folder).model_type.removesuffix("_thinker")
            if kind in ("qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe"):
                return qwen_audio(folder, self._dtype)
            if kind == "moshi":
                return moshi(folder, self._dtype)
            return voxtral(folder, self._dtype) if kind == "voxtral" else causal_lm(folder, self._dtype)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise BrokenCheckpoint(f"{folder} cannot be loaded: {type(error).__name__}: {error}") from error


def put_in(module: nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Puts all of a checkpoint's weights into a module, and leaves none of the module's as it was.

    Args:
        module: Its names may lack a common beginning that those of the checkpoint have, or have one that those lack.
        state: The weights.
        path: For messages.

    Raises:
        BrokenCheckpoint: If names or shapes do not fit.
    """
    own = set(module.state_dict())
    beginnings = {name.partition(".")[0] + "." for name in state}
    fitting = [state, *({name.removeprefix(start): tensor for name, tensor in state.items()} for start in beginnings if len(beginnings) == 1)]
    chosen = next((each for each in fitting if own & set(each)), state)
    missing, unknown = sorted(own - set(chosen)), sorted(set(chosen) - own)
    # What a module says itself not to save, the base model under low-rank adapters for example, it must have from elsewhere.
    strict = module.strict_loading if isinstance(module, pl.LightningModule) else True
    if (strict and (missing or unknown)) or len(missing) == len(own):
        raise BrokenCheckpoint(
            f"{path} does not fit {type(module).__name__}: it lacks {_some(missing)}, and has {_some(unknown)} besides; was it saved from another "
            "model?"
        )
    try:
        module.load_state_dict(chosen, strict=strict)
    except RuntimeError as error:
        raise BrokenCheckpoint(f"{path} does not fit {type(module).__name__}: {str(error).splitlines()[-1].strip()}") from error


def _callbacks(content: dict[str, Any]) -> list[Any]:
    trainer = content.get("trainer")
    callbacks = (trainer.get("callbacks") if isinstance(trainer, dict) else None) or []
    return callbacks if isinstance(callbacks, list) else [callbacks]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "nothing"
