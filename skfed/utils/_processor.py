"""The processor, as torch tells it."""

from typing import Any

import torch


def capabilities() -> dict[str, Any]:
    """Return the processor's name and instructions; nothing where torch does not tell them."""
    tell = getattr(torch.cpu, "get_capabilities", dict)  # versions before 2.13 may lack it
    return tell()


def is_made_by(maker: str) -> bool:
    """Tell whether torch names ``maker``, such as AMD or Intel."""
    return str(capabilities().get("cpu_name")).startswith(maker)
