"""The matrix products of a Llama-shaped layer."""

SLOTS = {
    "query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Name of a product -> the linear layers that it joins, by their names in the replaced layer."""
