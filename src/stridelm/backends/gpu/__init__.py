"""The GPU backend: Llama-family models as a few kernels a layer, in steps of fixed shape, each a CUDA graph.

Every row is computed by itself: products have fixed tiles and sum over their inputs in order, and attention sums over
positions in order, wherever a token's keys lie. So what a row says does not depend on the rows beside it, bit for bit,
in bfloat16 too: verified decoding equals plain decoding exactly.
"""
