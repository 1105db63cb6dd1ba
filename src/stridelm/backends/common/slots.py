"""The products of a Llama-shaped layer."""

SLOTS = {
    "query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Products that run as one -> the linear layers that each of them joins, by their names in the replaced layer."""
