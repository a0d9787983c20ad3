"""Accelerators: memory, bandwidth and arithmetic, from the vendors' data sheets."""

from dataclasses import dataclass

from ..options.values import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU. Peak numbers; what a server reaches of them is `ServerConstants`."""

    name: str
    memory_gb: float  # 1e9 bytes
    bandwidth_tb_s: float
    bf16_tflop_s: float  # dense


PRESETS: dict[str, Accelerator] = {
    preset.name: preset
    for preset in (
        Accelerator(name="a800", memory_gb=80, bandwidth_tb_s=2.0, bf16_tflop_s=312),
        Accelerator(name="a100", memory_gb=80, bandwidth_tb_s=2.04, bf16_tflop_s=312),
        Accelerator(name="h100", memory_gb=80, bandwidth_tb_s=3.35, bf16_tflop_s=989),
        Accelerator(name="h800", memory_gb=80, bandwidth_tb_s=3.35, bf16_tflop_s=989),
        Accelerator(name="h200", memory_gb=141, bandwidth_tb_s=4.8, bf16_tflop_s=989),
        Accelerator(name="h20", memory_gb=96, bandwidth_tb_s=4.0, bf16_tflop_s=148),
        Accelerator(name="b200", memory_gb=180, bandwidth_tb_s=7.7, bf16_tflop_s=2250),
        Accelerator(name="mi300x", memory_gb=192, bandwidth_tb_s=5.3, bf16_tflop_s=1307),
    )
}


DEFAULT_ACCELERATOR = "h200"  # where none is named


def find_accelerator(name: str) -> Accelerator:
    """
    Raises:
        ConfigError: when there is no such preset.
    """
    if name.lower() not in PRESETS:
        raise ConfigError(
            "accelerator",
            name,
            f"unknown{did_you_mean(name, PRESETS)}; choose one of {', '.join(PRESETS)}, or set memory_gb, "
            "bandwidth_tb_s, bf16_tflop_s",
        )
    return PRESETS[name.lower()]
