"""One protocol, one file per family of models, and the search for the right one."""

from s2sbench_callback.adapters.find import find_adapter, find_language_model
from s2sbench_callback.adapters.protocol import Adapter, Role, Row, Rows
from s2sbench_callback.adapters.summed_codebooks import SummedCodebooks
from s2sbench_callback.adapters.text_only import TextOnly

__all__ = ["Adapter", "Role", "Row", "Rows", "SummedCodebooks", "TextOnly", "find_adapter", "find_language_model"]
