"""Logits in float32 from the weights as they are stored, in numpy: what the kernels' own are compared with when a model
is packed (drift.py). Straightforward and without a cache; tests compare it with transformers.

Shape letters: N positions, C model width, H query heads, K key heads, D head size, V vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stridelm.backends.native.model_source import head_size, window
from stridelm.backends.native.rotary import frequencies
from stridelm.models.fingerprint import as_floats
from stridelm.models.weight_arrays import LazyWeights

Weight = Callable[[str], np.ndarray]


def reference_logits(
    config: Any, weights: Mapping[str, Any], ids: list[int], advance: Callable[[], None] = lambda: None
) -> np.ndarray:
    """N x V, for a model that `check_fits` takes. `advance` is called after each layer."""

    def weight(name: str) -> np.ndarray:
        return as_floats(weights[name])

    embedding = "model.embed_tokens.weight"
    is_lazy = isinstance(weights, LazyWeights)
    x_NC = weights.rows(embedding, np.asarray(ids)) if is_lazy else as_floats(weights[embedding][ids])
    turns_ND = np.arange(len(ids), dtype=np.float32)[:, None] * frequencies(head_size(config), config.rope_parameters)
    for number in range(config.num_hidden_layers):
        of = f"model.layers.{number}"
        normed_NC = _norm(x_NC, weight(f"{of}.input_layernorm.weight"), config.rms_norm_eps)
        x_NC = x_NC + _attention(config, weights, number, normed_NC, turns_ND)
        normed_NC = _norm(x_NC, weight(f"{of}.post_attention_layernorm.weight"), config.rms_norm_eps)
        gate, up = (normed_NC @ weight(f"{of}.mlp.{name}_proj.weight").T for name in ("gate", "up"))
        x_NC = x_NC + (gate / (1 + np.exp(-gate)) * up) @ weight(f"{of}.mlp.down_proj.weight").T
        advance()
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return _norm(x_NC, weight("model.norm.weight"), config.rms_norm_eps) @ weight(head).T


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(epsilon)) * weight


def _attention(
    config: Any, weights: Mapping[str, Any], number: int, x_NC: np.ndarray, turns_ND: np.ndarray
) -> np.ndarray:
    of, size = f"model.layers.{number}.self_attn", head_size(config)

    def heads(name: str) -> np.ndarray:
        """N x heads x D."""
        y = x_NC @ as_floats(weights[f"{of}.{name}_proj.weight"]).T
        if f"{of}.{name}_proj.bias" in weights:
            y = y + as_floats(weights[f"{of}.{name}_proj.bias"])
        y = y.reshape(len(x_NC), -1, size)
        norm = f"{of}.{name}_norm.weight"
        return _norm(y, as_floats(weights[norm]), config.rms_norm_eps) if norm in weights else y

    query_NHD, key_NKD, value_NKD = _turned(heads("q"), turns_ND), _turned(heads("k"), turns_ND), heads("v")
    per_key = query_NHD.shape[1] // key_NKD.shape[1]
    key_NHD, value_NHD = (np.repeat(each, per_key, axis=1) for each in (key_NKD, value_NKD))
    scores_HNN = np.einsum("nhd,mhd->hnm", query_NHD, key_NHD) / np.float32(size**0.5)
    distance_NN = np.arange(len(x_NC))[:, None] - np.arange(len(x_NC))
    is_seen_NN = (distance_NN >= 0) & (distance_NN < (window(config, number) or len(x_NC)))
    scores_HNN = np.where(is_seen_NN, scores_HNN, -np.inf)
    shares_HNN = np.exp(scores_HNN - scores_HNN.max(axis=-1, keepdims=True))
    shares_HNN /= shares_HNN.sum(axis=-1, keepdims=True)
    mixed_NC = np.einsum("hnm,mhd->nhd", shares_HNN, value_NHD).reshape(len(x_NC), -1)
    return mixed_NC @ as_floats(weights[f"{of}.o_proj.weight"]).T


def _turned(heads_NHD: np.ndarray, turns_ND: np.ndarray) -> np.ndarray:
    """Rotary positions: the halves of a head are turned against each other."""
    cosine, sine = (turn(turns_ND)[:, None] for turn in (np.cos, np.sin))
    first, second = np.split(heads_NHD, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
