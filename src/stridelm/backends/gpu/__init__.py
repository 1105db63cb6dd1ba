"""The GPU backend: Llama-family models as a few kernels per layer, in steps of fixed shape, each a CUDA graph.

Every row is computed by itself: products have fixed tiles and sum over their inputs in order, and attention sums over
positions in order, wherever a token's keys are stored. So a row's output does not depend on the other rows of the
step, bit for bit, in bfloat16 too: verified decoding equals plain decoding exactly.

    weights            a network's weights, stacked as the kernels read them
    layers             one pass over all layers; launches attention_kernels and product_kernels (with product_tiles)
    layout             the rows of a step, padded to a few fixed shapes
    forward            any step, planned by the host
    stepper            whole steps without the host: layers, then accept_kernels, then draft_grower (draft_kernels)
    template           the tree and mask chains of such a step
    sampling_kernels   draws at a temperature
    dependent_launch   kernels that start before the previous one has ended
    prompt_reader      prompts of rollouts
    memory, load       the KV cache; whether the kernels run a model
"""
