"""The native backend: C++ kernels on weights of 4 to 8 bits, without torch.

load.py               a model and its adapter, packed when first loaded, read from then on
model_source.py       what is packed: a GGUF file, or a folder that is quantised here; what the kernels support
pack_model.py         source to packed file, once
pack_adapter.py       the same for an adapter
drift.py              how far the packed model's logits are from float32
stored_blocks.py      the matrices of a GGUF file
quantised_matrix.py   weights in groups of 32: from GGUF blocks, or quantised here; and their packing for the kernels
block_matrix.py       the same for K-quants
rotary.py             the frequencies of rotary positions
packed_file.py        packed matrices and vectors in one file
huge_pages.py         the file in memory: copied to huge pages, or mapped
weights.py            packed weights as the kernels take them
forward.py            the model with a KV cache of its own (memory.py)
gate.py               mask rows: their embeddings and the sequential head
library.py            the C interface (forward.cpp), bound by ctypes: compiled for this machine, or from the wheel
prebuilt.py           the builds that a wheel brings

The kernels: forward.h runs a step over attention.h, elementwise.h and products.h, which multiplies quantised rows
(rows.h) by panels of weights (tiles.h, blocks.h); sequential.h, candidates.h and grow.h draft from masks; lanes.h wraps
the vector instructions, team.h the threads, workspace.h the memory; model.h holds the C structs.
"""
