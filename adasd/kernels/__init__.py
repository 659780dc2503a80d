"""The formulas of `adasd.core` in torch, batched on the device."""
