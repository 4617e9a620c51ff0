"""GLM-4-Voice from folders under the published names: the language model against its remote class in small, and the whole system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import test_whisper_vq as speech
import torch
from chatglm_stand_in import ChatGLMStandIn, configuration
from contract import System, check_all
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GlmForCausalLM, PreTrainedTokenizerFast, dynamic_module_utils

from s2sbench_callback.adapters.vocabulary_models import GLM4Voice
from s2sbench_callback.mini_world.text_tokenizer import build_text_tokenizer
from s2sbench_callback.native.glm_4_voice import load_glm_4_voice
from s2sbench_callback.native.whisper_vq import load_whisper_vq

SPECIAL = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|begin_of_audio|>", "<|end_of_audio|>")
PADDED = 896
PUBLISHED = {
    **{name: value for name, value in vars(configuration(PADDED)).items() if not name.startswith("_")},
    "architectures": ["ChatGLMModel"],
    "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig", "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration"},
    "eos_token_id": [1, 2],
    "model_type": "chatglm",
    "pad_token_id": 1,
    "torch_dtype": "bfloat16",
}

# What the published tokenizer's code is like: bytes as tokens, all else added, padding of its own; letters stand for its merges.
TOKENIZER = """
from transformers import PreTrainedTokenizer


class ChatGLM4Tokenizer(PreTrainedTokenizer):
    vocab_files_names = {{"vocab_file": "tokenizer.model"}}
    model_input_names = ["input_ids", "attention_mask", "position_ids"]

    def __init__(self, vocab_file, padding_side="left", **kwargs):
        with open(vocab_file) as lines:
            self.ranks = {{bytes.fromhex(line.split()[0]): int(line.split()[1]) for line in lines}}
        self.by_rank = {{rank: token for token, rank in self.ranks.items()}}
        super().__init__(padding_side=padding_side, **kwargs)

    @property
    def vocab_size(self):
        return len(self.ranks)

    def get_vocab(self):
        return {{**self.ranks, **self.added_tokens_encoder}}

    def _tokenize(self, text, **kwargs):
        return [bytes([byte]) for byte in text.encode()]

    def _convert_token_to_id(self, token):
        return self.ranks[token]

    def _convert_id_to_token(self, index):
        return self.by_rank.get(index, "")

    def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
        return [*self.convert_tokens_to_ids(["[gMASK]", "<sop>"]), *token_ids_0]

    def _pad(self, encoded_inputs, max_length=None, padding_strategy=None, pad_to_multiple_of=None, {rest}):
        assert self.padding_side == "left"
        missing = (max_length or 0) - len(encoded_inputs["input_ids"])
        encoded_inputs["attention_mask"] = [0] * missing + [1] * len(encoded_inputs["input_ids"])
        encoded_inputs["input_ids"] = [self.pad_token_id] * missing + encoded_inputs["input_ids"]
        return encoded_inputs
"""


def remote_model() -> ChatGLMStandIn:
    torch.manual_seed(0)
    return ChatGLMStandIn(configuration(PADDED)).eval()


def write_folder(folder: Path, state: dict[str, Tensor], files: int = 3, **changed: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**PUBLISHED, **changed}))
    for place in range(files):
        part = {name: value.contiguous() for number, (name, value) in enumerate(state.items()) if number % files == place}
        save_file(part, folder / ("model.safetensors" if files == 1 else f"model-0000{place + 1}-of-0000{files}.safetensors"))
    return folder


def write_tokenizer(folder: Path, code: str) -> Path:
    (folder / "tokenization_chatglm.py").write_text(code)
    (folder / "tokenizer.model").write_text("".join(f"{byte:02x} {byte}\n" for byte in range(256)))
    names = ["<|endoftext|>", *SPECIAL, *(f"<|audio_{unit}|>" for unit in range(4))]
    added = {str(256 + place): {"content": name, "special": "audio_" not in name} for place, name in enumerate(names)}
    settings = {
        "added_tokens_decoder": {index: {**token, "normalized": False} for index, token in added.items()},
        "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLM4Tokenizer", None]},
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "ChatGLM4Tokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def given_tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer.from_str(build_text_tokenizer().backend_tokenizer.to_str())
    raw.add_special_tokens([*SPECIAL, *(f"<|audio_{unit}|>" for unit in range(speech.CODES))])
    assert raw.get_vocab_size() <= PADDED
    return PreTrainedTokenizerFast(tokenizer_object=raw)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("checkpoint"), remote_model().state_dict())


@torch.no_grad()
def test_logits_are_those_of_the_remote_class(folder: Path) -> None:
    tokenizer = given_tokenizer()
    model = load_glm_4_voice(folder, torch.float32, tokenizer)
    assert type(model) is GlmForCausalLM
    assert not model.training
    assert model.tokenizer is tokenizer
    ids = torch.randint(0, PADDED, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = remote_model()(ids).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(model(ids).logits, expected, atol=2e-6, rtol=1e-5)
    # It generates until one of the published end tokens.
    assert model.generation_config.eos_token_id == [1, 2]


def test_precision(folder: Path, tmp_path: Path) -> None:
    model = load_glm_4_voice(folder, tokenizer="any")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.config.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    model.save_pretrained(tmp_path)
    again = GlmForCausalLM.from_pretrained(tmp_path)
    assert again.dtype == torch.bfloat16
    ids = torch.arange(9)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_one_file(folder: Path, tmp_path: Path) -> None:
    one = load_glm_4_voice(write_folder(tmp_path, remote_model().state_dict(), files=1), tokenizer="any").state_dict()
    several = load_glm_4_voice(folder, tokenizer="any").state_dict()
    assert one.keys() == several.keys()
    assert all(torch.equal(value, several[name]) for name, value in one.items())


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    state = remote_model().state_dict()
    write_folder(tmp_path / "missing", state)
    lost = tmp_path / "missing" / "model-00002-of-00003.safetensors"
    lost.unlink()
    with pytest.raises(ValueError, match=r"missing .*transformer\.encoder\.layers\.0") as told:
        load_glm_4_voice(tmp_path / "missing", tokenizer="any")
    assert str(tmp_path) in str(told.value)
    with pytest.raises(ValueError, match=r"unexpected transformer\.prefix_encoder\.weight"):
        load_glm_4_voice(write_folder(tmp_path / "more", {**state, "transformer.prefix_encoder.weight": torch.zeros(3)}), tokenizer="any")
    with pytest.raises(ValueError, match=r"size mismatch for lm_head\.weight"):
        load_glm_4_voice(write_folder(tmp_path / "shape", {**state, "transformer.output_layer.weight": torch.zeros(3, 32)}), tokenizer="any")
    with pytest.raises(ValueError, match="add_bias_linear"):
        load_glm_4_voice(write_folder(tmp_path / "variant", state, add_bias_linear=True), tokenizer="any")


@pytest.mark.parametrize("name", ["config.json", "model*.safetensors"])
def test_files_that_lack_are_named(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, remote_model().state_dict())
    for path in tmp_path.glob(name):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=name.replace("*", r"\*")):
        load_glm_4_voice(tmp_path, tokenizer="any")


def test_code_in_the_folder_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    folder = write_tokenizer(write_folder(tmp_path / "checkpoint", remote_model().state_dict()), "raise RuntimeError('run')")
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        load_glm_4_voice(folder)
    load_glm_4_voice(folder, tokenizer="any", trust_remote_code=True)


@pytest.mark.parametrize("rest", ["return_attention_mask=None", "padding_side=None, return_attention_mask=None", "**kwargs"])
def test_the_tokenizers_own_code(rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also such code as transformers 4.44 asked for, the first."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = write_tokenizer(write_folder(tmp_path / "checkpoint", remote_model().state_dict()), TOKENIZER.format(rest=rest))
    tokenizer: Any = load_glm_4_voice(folder, trust_remote_code=True).tokenizer
    assert type(tokenizer).__name__ == "ChatGLM4Tokenizer"
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [97, 98]
    assert tokenizer("<|audio_3|> a")["input_ids"] == [257, 258, 267, 32, 97]
    batch = tokenizer(["ab", "a"], add_special_tokens=False, padding=True)
    assert batch["input_ids"] == [[97, 98], [256, 97]]
    assert batch["attention_mask"] == [[1, 1], [0, 1]]
    adapter = GLM4Voice(tokenizer, lambda waveform: [3, 0], "two units")
    heard = adapter.encode_audio(remote_model(), torch.zeros(1))
    streams = adapter.context_streams([adapter.encode_text("a:"), heard])
    assert streams.flatten().tolist() == [257, 258, 97, 58, 262, 267, 264, 263]


def test_the_whole_system(folder: Path, tmp_path: Path) -> None:
    """Language model and speech tokenizer from their folders, read by the adapter."""
    state = speech.published_state(speech.PUBLISHED)
    heard = speech.write_folder(tmp_path / "speech", state)

    def build() -> System:
        model: Any = load_glm_4_voice(folder, torch.float32, given_tokenizer())
        return System(model, GLM4Voice(model.tokenizer, load_whisper_vq(heard)), ("s2t", "t2t", "s2s", "t2s"))

    check_all(build, tmp_path)
    system = build()
    waveform = speech.recording(20_000)
    units = [f"<|audio_{code}|>" for code in speech.slow_codes(state, speech.PUBLISHED, waveform).tolist()]
    ids = system.adapter.encode_audio(system.model, waveform).flatten().tolist()
    assert given_tokenizer().convert_ids_to_tokens(ids) == units
    assert len(units) == 16
