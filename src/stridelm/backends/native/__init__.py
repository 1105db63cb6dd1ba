"""The native backend: C++ kernels on 4-bit and 8-bit weights, without torch.

library.py      the C interface, compiled for this machine and bound by ctypes
groups.py       weights in groups of 32: from GGUF blocks, or quantised here; and their packing for the kernels
rotary.py       the frequencies of rotary positions
packed.py       packed matrices in one file, memory-mapped
source.py       what is packed: a GGUF file, or a folder that is quantised
pack.py         source to packed, once; drift.py: how far from float32 that is
conversion.py   the same for an adapter
weights.py      what is packed, as the kernels take it
memory.py       keys and values
forward.py      the model with a cache of its own; gate.py: its masks
load.py         all of it together; heads and draft models run on torch beside it (torch/beside_native.py)
"""
