"""GLM-4-Voice's language model as ``GlmForCausalLM``, from its published checkpoint."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, GlmForCausalLM
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding

from s2sbench_callback.native.weights import glm_from_chatglm, safetensors_files


def load_glm_4_voice(
    folder: str | Path, dtype: torch.dtype = torch.bfloat16, tokenizer: Any = None, trust_remote_code: bool = False
) -> GlmForCausalLM:
    """Loads a published checkpoint, or one that was fine-tuned in the published class and saved by it.

    None of the published model code is run: the weights are given the names of ``GlmForCausalLM``, which computes the same. Each file is cast and
    let go before the next is read: at its peak this takes little more than the size of the model in ``dtype`` and that of one file.

    The published tokenizer is code of its own (``ChatGLM4Tokenizer``, which needs the package ``tiktoken``). With ``trust_remote_code`` that code
    is run. It loads on transformers 5.24; copies of it that are older than transformers 4.45 fail there at the first text, since their ``_pad``
    takes no ``padding_side``, so they are given one that is not looked at: the class pads left alone.

    Verified with random weights: see :func:`~s2sbench_callback.native.weights.glm_from_chatglm`. The tokenizer was tried as a class written
    after public copies of the published one, with ``tiktoken`` 0.14, in both its forms. **Unverified with the published files.**

    Args:
        folder: A local folder in Hugging Face's layout: ``config.json``, weights in one or several ``model*.safetensors``, and the tokenizer where
            none is given.
        dtype: Precision of the weights; published in bfloat16.
        tokenizer: The text tokenizer, instead of that of the folder.
        trust_remote_code: Allows the tokenizer's own code in the folder to run.

    Returns:
        The model on the CPU in evaluation mode, its tokenizer as ``tokenizer``.

    Raises:
        FileNotFoundError: If the folder lacks ``config.json`` or weights.
        ValueError: If there is no tokenizer, or if weights are missing, unexpected or of another shape; the message names them.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder / 'config.json'} does not exist; give the local folder that holds all files of glm-4-voice-9b")
    files = safetensors_files(folder)
    # Before the weights, which take long.
    tokenizer = _tokenizer(folder, trust_remote_code) if tokenizer is None else tokenizer
    state: dict[str, Tensor] = {}
    for path in files:
        state.update((name, tensor.to(dtype)) for name, tensor in load_file(path).items())
    try:
        weights, config = glm_from_chatglm(state, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"the checkpoint in {folder} cannot be read: {error}") from error
    config.dtype = dtype
    with torch.device("meta"):
        model: Any = GlmForCausalLM(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"the weights in {folder} are not those of its config.json: {error}") from error
    # Computed, not loaded.
    model.model.rotary_emb = GlmRotaryEmbedding(config)
    model.tokenizer = tokenizer
    loaded: GlmForCausalLM = model.eval()
    return loaded


def _tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    if not trust_remote_code:
        raise ValueError(
            f"the tokenizer in {folder} is code of its own; look at its *.py files and pass trust_remote_code=True to run them, "
            "or pass a tokenizer with the same ids in tokenizer="
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    kind = type(tokenizer)
    pad = kind._pad
    if not any(taken.name == "padding_side" or taken.kind is taken.VAR_KEYWORD for taken in inspect.signature(pad).parameters.values()):

        def pad_left(self: Any, *args: Any, padding_side: str | None = None, **kwargs: Any) -> Any:
            return pad(self, *args, **kwargs)

        kind._pad = pad_left
    return tokenizer
