"""NeMo's own SALM, DuplexS2SModel and DuplexSTTModel, tiny and with random weights; their environment is that of requirements/nemo.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("nemo", reason="NeMo has an environment of its own")

from contract import check_all
from nemo.collections.speechlm2.models import SALM, DuplexS2SModel, DuplexSTTModel, duplex_s2s_model
from nemo.collections.speechlm2.modules.perception import IdentityConnector
from nemo.collections.tts.models import AudioCodecModel
from omegaconf import DictConfig
from test_nemo_stand_ins import (
    HIDDEN,
    LLM,
    TAG,
    Builders,
    check_boosts_are_left_out,
    check_duplex_natively,
    check_lora,
    check_salm_natively,
    check_salm_written_context,
    check_what_the_front_end_is,
    duplex_system,
    recording,
    salm_system,
    text_tokenizer,
)

from s2sbench_callback.adapters.nemo_salm import NeMoSALM

CONNECTORS: dict[str, dict[str, Any]] = {
    # Their projection: perception's, or their own.
    "identity": {"_target_": f"{IdentityConnector.__module__}.IdentityConnector", "d_model": 16},
    "layers": {
        "_target_": f"{IdentityConnector.__module__}.MultiLayerProjectionConnector",
        "target_layer_ids": [0],
        "input_dim": 16,
        "output_dim": HIDDEN,
    },
    "qformer": {
        "_target_": f"{IdentityConnector.__module__}.QformerConnector",
        "prompt_size": 5,
        "target_layer_ids": [0],
        "qformer_num_hidden_layers": 1,
        "encoder_config": {"d_model": 16, "encoder_attention_heads": 2},
        "llm_config": {"hidden_size": HIDDEN},
    },
}
CONFORMER = {
    "_target_": "nemo.collections.asr.modules.ConformerEncoder",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 2,
    "subsampling": "dw_striding",
    "subsampling_factor": 8,
    "subsampling_conv_channels": 4,
    "conv_kernel_size": 3,
    "ff_expansion_factor": 2,
}
# Its forward projects by itself; a Conformer of one layer that subsamples no more adapts it.
CONNECTORS["conformer"] = CONFORMER | {"feat_in": 16, "n_layers": 1, "subsampling_factor": 1, "subsampling": "striding"}
PREPROCESSOR = {
    "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
    "features": 16,
    "sample_rate": 16_000,
    "window_size": 0.025,
    "window_stride": 0.01,
    "normalize": "per_feature",
    "n_fft": 512,
    "pad_to": 16,
}
CODEC = {
    "sample_rate": 22_050,
    "samples_per_frame": 1_764,
    "audio_encoder": {
        "_target_": "nemo.collections.tts.modules.audio_codec_modules.HiFiGANEncoder",
        "down_sample_rates": [7, 7, 6, 6],
        "encoded_dim": 4,
        "base_channels": 2,
        "resblock_kernel_sizes": [3],
    },
    "audio_decoder": {
        "_target_": "nemo.collections.tts.modules.audio_codec_modules.HiFiGANDecoder",
        "input_dim": 4,
        "up_sample_rates": [7, 7, 6, 6],
        "base_channels": 32,
        "resblock_kernel_sizes": [3],
    },
    "vector_quantizer": {
        "_target_": "nemo.collections.tts.modules.audio_codec_modules.GroupFiniteScalarQuantizer",
        "num_groups": 2,
        "num_levels_per_group": [4, 4],
    },
    # Its constructor asks for losses too.
    "commit_loss_scale": 0.0,
    "loss_resolutions": [[256, 64, 256]],
    "mel_loss_dims": [8],
    "generator_loss": {"_target_": "nemo.collections.tts.losses.audio_codec_loss.GeneratorSquaredLoss"},
    "discriminator_loss": {"_target_": "nemo.collections.tts.losses.audio_codec_loss.DiscriminatorSquaredLoss"},
}


@pytest.fixture(scope="session")
def llm_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("llm")
    text_tokenizer().save_pretrained(folder)
    LLM.save_pretrained(folder)
    return str(folder)


def config(folder: str, connector: str = "identity", **more: Any) -> dict[str, Any]:
    perception = {"preprocessor": PREPROCESSOR, "encoder": CONFORMER | {"feat_in": 16}, "output_dim": HIDDEN}
    return {"pretrained_llm": folder, "pretrained_weights": False, "perception": perception | {"modality_adapter": CONNECTORS[connector]}, **more}


def set_up_codec(model: Any) -> None:
    """In place of NeMo's, which loads a published codec."""
    if not hasattr(model, "audio_codec"):
        model.audio_codec = AudioCodecModel(cfg=DictConfig(CODEC)).eval().requires_grad_(False)


@pytest.fixture
def builders(llm_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builders:
    monkeypatch.setattr(duplex_s2s_model, "setup_audio_codec", set_up_codec)

    def salm(connector: str = "identity", **more: Any) -> nn.Module:
        torch.manual_seed(0)
        return SALM(config(llm_folder, connector, audio_locator_tag=TAG, **more)).eval()

    def duplex(speaks: bool, transcribes: bool = False) -> nn.Module:
        torch.manual_seed(0)
        if speaks:
            return DuplexS2SModel(config(llm_folder, duplex_user_channel_weight=0.7, pretrained_audio_codec="tiny")).eval()
        weights = {"duplex_user_channel_weight": 0.7, "duplex_text_channel_weight": 1.3, "duplex_asr_text_weight": 0.5}
        more = {"source_sample_rate": 16_000, "validation_save_path": str(tmp_path), "predict_user_text": transcribes}
        return DuplexSTTModel(config(llm_folder, **weights, **more)).eval()

    return Builders(salm, duplex)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_salm_keeps_the_contract(connector: str, builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: salm_system(builders, connector), tmp_path)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_salm_has_the_logits_of_its_own_forward(connector: str, builders: Builders) -> None:
    # The Q-Former attends to its encoder's padding, so that in a batch NeMo itself gives a recording other logits than alone.
    batches = ((0,), (1,)) if connector == "qformer" else ((0,), (0, 1))
    check_salm_natively(salm_system(builders, connector), tolerance=1e-4, batches=batches)


def test_salm_after_a_written_context(builders: Builders) -> None:
    check_salm_written_context(salm_system(builders))


def test_salm_hears_long_recordings_in_chunks(builders: Builders) -> None:
    system = salm_system(builders)
    whole = system.adapter.encode_audio(system.model, recording(1.3, 0))
    system.model.cfg.encoder_chunk_size_seconds = 0.5
    assert not torch.allclose(system.adapter.encode_audio(system.model, recording(1.3, 0))[: len(whole)], whole[: len(whole)], atol=1e-3)
    # The last has a rest that is too short for a chunk of its own.
    for seconds in ((1.3, 2.2), (1.0, 1.505)):
        check_salm_natively(system, seconds, tolerance=1e-3)


@pytest.mark.parametrize(
    ("connector", "trained", "heard"),
    [
        ("identity", "perception.proj.weight", "perception.encoder.layers.0.norm_out.weight"),
        ("conformer", "perception.proj.weight", "perception.modality_adapter.layers.0.norm_out.weight"),
        ("layers", "perception.modality_adapter.proj.weight", "perception.encoder_multilayer.encoder.layers.0.norm_out.weight"),
        ("qformer", "perception.modality_adapter.proj.1.weight", "perception.modality_adapter.layer_prompts.0"),
    ],
)
def test_salms_projection_runs_live(connector: str, trained: str, heard: str, builders: Builders) -> None:
    check_what_the_front_end_is(salm_system(builders, connector), trained, heard)


def test_salm_with_nemos_own_lora(builders: Builders) -> None:
    lora = {"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    check_lora(salm_system(builders), builders.salm(lora=lora, prevent_freeze_params=[]))


def test_nemos_tokenizer_says_the_same(builders: Builders) -> None:
    tokenizer = builders.salm().tokenizer
    for text in ("He was wet.", " It slept."):
        assert NeMoSALM(tokenizer).encode_text(text) == tokenizer.text_to_ids(text)


@pytest.mark.parametrize(("speaks", "quiet"), [(True, "silence"), (True, "absent"), (False, "silence"), (False, "absent")])
def test_duplex_models_keep_the_contract(speaks: bool, quiet: str, builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: duplex_system(builders, speaks, quiet=quiet), tmp_path)


def test_a_duplex_model_that_transcribes_keeps_the_contract(builders: Builders, tmp_path: Path) -> None:
    check_all(lambda: duplex_system(builders, False, True, turn=False, flush_seconds=0.3), tmp_path)


@pytest.mark.parametrize(
    ("speaks", "transcribes", "quiet"), [(True, False, "silence"), (False, False, "silence"), (False, False, "absent"), (False, True, "silence")]
)
def test_duplex_models_have_the_logits_of_their_own_forward(
    speaks: bool, transcribes: bool, quiet: str, builders: Builders, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_duplex_natively(duplex_system(builders, speaks, transcribes, quiet=quiet), quiet, monkeypatch)


def test_boosts_of_logits_are_left_out(builders: Builders) -> None:
    check_boosts_are_left_out(duplex_system(builders, False, quiet="absent"))
