"""Saved weights on disk: what kind they are, which step they are of, and how to read them.

Known are Lightning's ``.ckpt`` files and sharded folders, plain state dicts (``.pt``, ``.bin``, ``.safetensors``) and Hugging Face folders.
"""

from __future__ import annotations

import glob
import json
import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from s2sbench_callback.averaged_weights import Weights

Kind = Literal["lightning", "sharded", "weights", "huggingface"]

_FILES: dict[str, Kind] = {".ckpt": "lightning", ".pt": "weights", ".pth": "weights", ".bin": "weights", ".safetensors": "weights"}
_SHARDS, _BESIDE_SHARDS = ".metadata", "meta.pt"
# The release's names are ckpt_<a>_<step>_<b>.
_STEPS = (re.compile(r"^ckpt_[^_]+_(\d+)_"), re.compile(r"step[=_-]?(\d+)"), re.compile(r"^checkpoint-(\d+)$"), re.compile(r"^(\d+)$"))
_UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, EOFError, AttributeError, ImportError, zipfile.BadZipFile, SafetensorError)


class BrokenCheckpoint(ValueError):
    """A checkpoint that cannot be read, or not put into the model; others may do."""


@dataclass(frozen=True)
class Checkpoint:
    """Weights on disk.

    Attributes:
        path: File or folder.
        kind: How they are kept.
        stamp: Tells whether they are the same as at another time: name, size in bytes and time of the last change.
    """

    path: Path
    kind: Kind
    stamp: Mapping[str, str | int]

    def is_complete(self) -> bool:
        """Whether every part that it names is there; parts may still be growing."""
        if self.kind == "sharded":
            return (self.path / _SHARDS).is_file()
        index = next(self.path.glob("*.index.json"), None) if self.kind == "huggingface" else None
        if index is None:
            return self.kind != "huggingface" or any(self.path.glob("*.safetensors")) or any(self.path.glob("*.bin"))
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError):
            return False
        return all((self.path / shard).is_file() for shard in shards)

    def step(self, trust: bool = False) -> int:
        """Optimizer steps done: what the checkpoint says itself, else its name.

        Args:
            trust: Whether objects other than tensors and plain data may be unpickled, which can run any code.

        Raises:
            BrokenCheckpoint: If it cannot be read.
            ValueError: If neither says.
        """
        said = self._step_inside(trust)
        if said is not None:
            return said
        name = self.path.stem if self.path.is_file() else self.path.name
        for pattern in _STEPS:
            found = pattern.search(name)
            if found:
                return int(found[1])
        raise ValueError(f"{self.path} does not say which step it is of, nor does its name (step=1000, checkpoint-1000, ckpt_0_1000_0): give --step")

    def state_dict(self, trust: bool = False, weights: Weights = "current") -> dict[str, Tensor]:
        """The weights, on the CPU, without what ``torch.compile`` puts into their names.

        Args:
            trust: As for :meth:`step`.
            weights: Which, where Lightning's averaging has saved both.

        Raises:
            BrokenCheckpoint: If they cannot be read.
        """
        content: Any
        try:
            if self.kind == "sharded":
                content = _load_shards(self.path)
            else:
                content = load_file(self.path) if self.path.suffix == ".safetensors" else _unpickle(self.path, trust)
            averaged = "current_model_state" in content
            if weights == "average" and not averaged:
                raise BrokenCheckpoint(f"{self.path} holds no averaged weights")
            # Beside an average, that is the state dict; Lightning's FSDP calls it "model" where it shards.
            keys = ["current_model_state"] if averaged and weights == "current" else ["state_dict", "model"]
            content = next((content[key] for key in keys if isinstance(content.get(key), dict)), content)
            state = {name.replace("_orig_mod.", ""): tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
        except _UNREADABLE as error:
            raise _broken(self.path, error) from error
        if not state:
            raise BrokenCheckpoint(f"{self.path} holds no weights")
        return state

    def _step_inside(self, trust: bool) -> int | None:
        try:
            content: Any = None
            if self.kind == "lightning":
                content = _unpickle(self.path, trust)
            elif self.kind == "sharded" and (self.path / _BESIDE_SHARDS).is_file():
                content = _unpickle(self.path / _BESIDE_SHARDS, trust)
            elif self.kind == "huggingface" and (self.path / "trainer_state.json").is_file():
                content = json.loads((self.path / "trainer_state.json").read_text(encoding="utf-8"))
            elif self.path.suffix == ".safetensors":
                with safe_open(self.path, "pt") as file:
                    file.keys()
            return int(content["global_step"]) if isinstance(content, dict) and "global_step" in content else None
        except _UNREADABLE as error:
            raise _broken(self.path, error) from error


def find_checkpoints(patterns: Sequence[str]) -> list[Checkpoint]:
    """Checkpoints by path or glob, each once.

    Args:
        patterns: Files, folders, or globs of them; a folder that is no checkpoint itself stands for those in it.

    Raises:
        FileNotFoundError: If one matches nothing.
        ValueError: If a path is no checkpoint, or one that has to be converted first.
    """
    found: dict[Path, Checkpoint] = {}
    for pattern in patterns:
        paths = sorted(Path(path) for path in glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [Path(pattern)]
        if not paths:
            raise FileNotFoundError(f"{pattern} matches no checkpoint")
        for path in paths:
            if not path.exists():
                raise FileNotFoundError(f"{path}: no such checkpoint")
            checkpoints = [checkpoint] if (checkpoint := as_checkpoint(path)) else inside(path)
            if not checkpoints and not glob.has_magic(pattern):
                raise ValueError(
                    f"{path} is no checkpoint that can be read: neither a .ckpt, .pt, .bin or .safetensors file, nor a folder with .metadata "
                    "(sharded) or config.json (Hugging Face), nor a folder of such"
                )
            found.update({each.path.resolve(): each for each in checkpoints})
    return list(found.values())


def inside(folder: Path) -> list[Checkpoint]:
    """Checkpoints in a folder and below, but not within each other."""
    checkpoints = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        checkpoint = as_checkpoint(path)
        if checkpoint:
            checkpoints.append(checkpoint)
        elif path.is_dir() and not path.is_symlink():
            checkpoints += inside(path)
    return checkpoints


def as_checkpoint(path: Path) -> Checkpoint | None:
    """What a file or folder is, or ``None`` if it is no checkpoint.

    Raises:
        ValueError: If it is DeepSpeed's, whose parts only DeepSpeed can put together.
    """
    if path.is_file():
        kind = _FILES.get(path.suffix)
        return Checkpoint(path, kind, _stamp(path, [path])) if kind else None
    if not path.is_dir():
        return None
    if (path / "latest").is_file() or (path / "checkpoint" / "latest").is_file() or any(path.glob("**/zero_pp_rank_*")):
        raise ValueError(
            f"{path} is DeepSpeed's: put its parts together first, with lightning.pytorch.utilities.deepspeed."
            f"convert_zero_checkpoint_to_fp32_state_dict({str(path)!r}, 'whole.ckpt')"
        )
    parts = [part for part in path.iterdir() if part.is_file()]
    if (path / _SHARDS).is_file() or (parts and all(part.suffix == ".distcp" for part in parts)):
        return Checkpoint(path, "sharded", _stamp(path, parts))
    if (path / "config.json").is_file():
        return Checkpoint(path, "huggingface", _stamp(path, parts))
    return None


def _stamp(path: Path, parts: Sequence[Path]) -> dict[str, str | int]:
    stats = [part.stat() for part in parts]
    return {"name": path.name, "bytes": sum(each.st_size for each in stats), "changed": max((each.st_mtime_ns for each in stats), default=0)}


def _unpickle(path: Path, trust: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", mmap=zipfile.is_zipfile(path), weights_only=not trust)
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error).lower() or "WeightsUnpickler" in str(error):
            raise BrokenCheckpoint(
                f"{path} holds objects besides tensors and plain data, which can run any code when they are read; if you made it yourself, give "
                f"--trust true ({str(error).splitlines()[0]})"
            ) from error
        raise _broken(path, error) from error


def _load_shards(path: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    # As torch's own dcp_to_torch_save does: it has no public way to read without knowing the names.
    content: dict[str, Any] = {}
    _load_state_dict(content, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return content


def _broken(path: Path, error: Exception) -> BrokenCheckpoint:
    if isinstance(error, BrokenCheckpoint):
        return error
    return BrokenCheckpoint(f"{path} cannot be read: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'damaged'}")
