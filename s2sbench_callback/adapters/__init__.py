"""One protocol, one file per family of models, and the search for the right one."""

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.audio_llms import Qwen2Audio, Qwen3OmniThinker, Qwen25OmniThinker, Voxtral
from s2sbench_callback.adapters.encoder_projector import EncoderProjectorLLM
from s2sbench_callback.adapters.find import find_adapter, find_language_model
from s2sbench_callback.adapters.freeze_omni import FreezeOmni
from s2sbench_callback.adapters.kyutai_stt import KyutaiSTT
from s2sbench_callback.adapters.moshi import KyutaiMoshi, Moshi
from s2sbench_callback.adapters.nemo_duplex import NeMoDuplex
from s2sbench_callback.adapters.nemo_salm import NeMoSALM
from s2sbench_callback.adapters.protocol import Adapter, Candidate, Role, Row, Rows
from s2sbench_callback.adapters.summed_codebooks import SummedCodebooks
from s2sbench_callback.adapters.text_ids import TextIds, text_candidate
from s2sbench_callback.adapters.text_only import TextOnly
from s2sbench_callback.adapters.vocabulary_models import TWIST, GLM4Voice, SpiritLM, UnitLM

__all__ = [
    "TWIST",
    "Adapter",
    "Candidate",
    "EncoderProjectorLLM",
    "FreezeOmni",
    "GLM4Voice",
    "KyutaiMoshi",
    "KyutaiSTT",
    "Moshi",
    "NeMoDuplex",
    "NeMoSALM",
    "Qwen2Audio",
    "Qwen3OmniThinker",
    "Qwen25OmniThinker",
    "Role",
    "Row",
    "Rows",
    "SpiritLM",
    "SummedCodebooks",
    "TextIds",
    "TextOnly",
    "UnitLM",
    "Voxtral",
    "attention_arguments",
    "find_adapter",
    "find_language_model",
    "text_candidate",
]
