"""Devices that compute parts of a program (heterogeneous execution)."""

from compiler._lazy import lazy

__getattr__, __dir__, __all__ = lazy(
    __name__,
    {
        "compiler.devices.building": ["plan_devices"],
        "compiler.devices.device": [
            "Device", "get_device", "register_device", "remove_device",
        ],
        "compiler.devices.placing": ["on_device", "place"],
        "compiler.ir.devices": ["Copied", "Placement", "placements"],
    },
)  # fmt: skip
