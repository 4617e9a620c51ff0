"""One protocol, one file per family of models, and the search for the right one."""

from s2sbench_callback.adapters.attention import attention_arguments
from s2sbench_callback.adapters.find import find_adapter, find_language_model
from s2sbench_callback.adapters.protocol import Adapter, Candidate, Role, Row, Rows
from s2sbench_callback.adapters.summed_codebooks import SummedCodebooks
from s2sbench_callback.adapters.text_ids import TextIds, text_candidate
from s2sbench_callback.adapters.text_only import TextOnly

__all__ = [
    "Adapter",
    "Candidate",
    "Role",
    "Row",
    "Rows",
    "SummedCodebooks",
    "TextIds",
    "TextOnly",
    "attention_arguments",
    "find_adapter",
    "find_language_model",
    "text_candidate",
]
