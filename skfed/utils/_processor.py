"""What torch tells of the processor."""

from collections.abc import Mapping
from typing import Any

import torch


def capabilities() -> Mapping[str, Any]:
    """Return the processor's name and instructions; empty where torch does not tell them."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # some versions before 2.13 lack it
    return tell()


def is_made_by(maker: str) -> bool:
    """Tell whether ``maker``, "AMD" or "Intel", makes it; False where torch does not tell."""
    return str(capabilities().get("cpu_name")).startswith(maker)
