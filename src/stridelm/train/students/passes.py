"""Passes over many texts at once, through a model as transformers made it: for training, evaluation and rollouts.

A training step consists of two. The text pass is the teacher's: it runs the real rows, without gradients, and keeps
their keys and values. The chain pass is the student's: it runs the mask rows, which read these keys and values. A
student whose real rows are trained, too, runs both as one pass (`JointPass`).

    text      t0 t1 t2 t3 t4 t5       columns of a chain row: its own chain's masks first, then the text
    chain at t1:  m1 m2 m3            m2 sees    m1 m2 .    # # . . . .
    chain at t3:  m1 m2 m3            m2 sees    m1 m2 .    # # # # . .

The rule is that of stridelm.layout: a row sees its ancestors. The model gets all rows as one sequence, so that its
layers see the same shape for all lengths of texts; attention reshapes the sequence into texts again.

Shape letters: B texts, T tokens of a text, A anchors of a text, K masks of a chain, M = A x K mask rows of a text,
H query heads, G key-value heads, D head size, Q = all rows of the pass.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from stridelm.backends.torch.attention import AttentionInput, ScoreRule


class TextPass:
    """B texts of T tokens, padded at the end: causal attention. Stores the keys and values of all layers."""

    def __init__(self, texts: int, width: int) -> None:
        self.texts = texts
        self.width = width
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(self, given: AttentionInput) -> torch.Tensor:
        query, key, value = _fold(self.texts, *given.projections)
        window, rule = given.window, given.rule
        self.layers[given.layer] = key.contiguous(), value.contiguous()  # chains may read them a hundred times
        if rule.is_plain and (window is None or window >= self.width):
            output = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=rule.scaling, enable_gqa=key.shape[1] != query.shape[1]
            )
            return _unfold(output)
        behind_TT = torch.arange(self.width, device=query.device)
        behind_TT = behind_TT[:, None] - behind_TT[None, :]
        sees_TT = (behind_TT >= 0) & (behind_TT < (window or self.width))
        return _unfold(attend_dense(query, key, value, sees_TT, rule))


class ChainPass:
    """Chains of K masks that start at anchors in the texts of a text pass. Row order: text, anchor, depth."""

    def __init__(self, texts: TextPass, anchors_BA: torch.Tensor, masks: int) -> None:
        self.texts = texts
        self.anchors_BA = anchors_BA
        self.masks = masks
        self._seen: dict[int | None, Any] = {}

    @property
    def positions(self) -> torch.Tensor:
        """The position of a mask is that of the unknown token that it stands for."""
        return self.anchors_BA[..., None] + torch.arange(1, self.masks + 1, device=self.anchors_BA.device)

    def attend(self, given: AttentionInput) -> torch.Tensor:
        query, own_key, own_value = _fold(self.texts.texts, *given.projections)
        window, rule = given.window, given.rule
        text_key, text_value = self.texts.layers[given.layer]
        if rule.is_plain and _is_block_sparse(query):
            key, value = torch.cat([own_key, text_key], dim=2), torch.cat([own_value, text_value], dim=2)
            if window not in self._seen:
                self._seen[window] = self._block_mask(window)
            # By default torch 2.11 chooses a kernel for few rows, which it then fails to compile in float32.
            how = {"block_mask": self._seen[window], "scale": rule.scaling, "kernel_options": {"BACKEND": "TRITON"}}
            return _unfold(_flex()(query, key, value, enable_gqa=True, **how))
        if window not in self._seen:
            self._seen[window] = self._split_mask(window)
        keys, values = (text_key, own_key), (text_value, own_value)
        return _unfold(_attend_split(query, keys, values, self._seen[window], self.masks, rule))

    def rule(self, window: int | None) -> Callable[..., torch.Tensor]:
        """Whether a row sees a column, for tensors of indices (text, head, row, column)."""
        anchors_BA, masks = self.anchors_BA, self.masks
        rows = anchors_BA.shape[1] * masks

        def sees(text: torch.Tensor, _: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            anchor, depth = anchors_BA[text, row // masks], row % masks
            place = column - rows
            own = (column < rows) & (column // masks == row // masks) & (column <= row)
            before = (column >= rows) & (place <= anchor)
            if window is None:
                return own | before
            return (own & (row - column < window)) | (before & (anchor + 1 + depth - place < window))

        return sees

    def _split_mask(self, window: int | None) -> torch.Tensor:
        """B x M x (T + K): which tokens of its text, then which masks of its own chain, a row sees."""
        texts, anchors = self.anchors_BA.shape
        index = [torch.arange(size, device=self.anchors_BA.device) for size in (texts, anchors * self.masks)]
        text, row = torch.meshgrid(*index, indexing="ij")
        rule, head = self.rule(window), torch.zeros((), dtype=torch.int64)
        of_text = torch.arange(self.texts.width, device=row.device) + anchors * self.masks
        of_chain = (row // self.masks * self.masks)[..., None] + torch.arange(self.masks, device=row.device)
        columns = torch.cat([of_text.expand(texts, len(index[1]), -1), of_chain], dim=-1)
        return rule(text[..., None], head, row[..., None], columns)

    def _block_mask(self, window: int | None) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        texts, anchors = self.anchors_BA.shape
        rows = anchors * self.masks
        return create_block_mask(
            self.rule(window), texts, None, rows, rows + self.texts.width, device=str(self.anchors_BA.device)
        )


class JointPass:
    """Texts and their chains in one pass, text rows first: for students whose real rows are trained, too."""

    def __init__(self, chains: ChainPass) -> None:
        self.chains = chains
        self.rows = chains.texts.texts * chains.texts.width
        """Number of rows of the texts."""

    @property
    def positions(self) -> torch.Tensor:
        """The positions of all rows."""
        texts, width = self.chains.texts.texts, self.chains.texts.width
        of_texts = torch.arange(width, device=self.chains.anchors_BA.device).repeat(texts)
        return torch.cat([of_texts, self.chains.positions.flatten()])

    def attend(self, given: AttentionInput) -> torch.Tensor:
        sizes = [self.rows, given.query_HQD.shape[1] - self.rows]
        of_texts, of_chains = (
            given._replace(query_HQD=query, key_GQD=key, value_GQD=value)
            for query, key, value in zip(*(part.split(sizes, dim=1) for part in given.projections), strict=True)
        )
        return torch.cat([self.chains.texts.attend(of_texts), self.chains.attend(of_chains)])


def _is_block_sparse(query: torch.Tensor) -> bool:
    """Whether to use block-sparse attention. It is compiled per shape, which pays off in training but not in an
    evaluation now and then."""
    return query.is_cuda and torch.is_grad_enabled()


@cache
def _flex() -> Any:
    """Block-sparse attention, compiled once per shape. Imported here, so that decoding does not pay for the import."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def attend_dense(
    query_BHqD: torch.Tensor,
    key_BGTD: torch.Tensor,
    value_BGTD: torch.Tensor,
    sees: torch.Tensor,
    rule: ScoreRule,
) -> torch.Tensor:
    """Attention over a boolean mask that broadcasts to B x H x q x T."""
    scaling, softcap, sinks_H = rule
    heads, groups = query_BHqD.shape[1], key_BGTD.shape[1]
    if rule.is_plain:
        return functional.scaled_dot_product_attention(
            query_BHqD, key_BGTD, value_BGTD, attn_mask=sees, scale=scaling, enable_gqa=heads != groups
        )
    key_BHTD, value_BHTD = (part.repeat_interleave(heads // groups, dim=1) for part in (key_BGTD, value_BGTD))
    scores = (query_BHqD @ key_BHTD.transpose(2, 3)).float() * (scaling or query_BHqD.shape[-1] ** -0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~sees, -torch.inf)
    if sinks_H is not None:
        sinks = sinks_H.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key_BHTD.shape[2]].to(value_BHTD.dtype)
    return weights @ value_BHTD


def _attend_split(
    query_BHMD: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor],
    values: tuple[torch.Tensor, torch.Tensor],
    sees_BMS: torch.Tensor,
    masks: int,
    rule: ScoreRule,
) -> torch.Tensor:
    """The attention of chains, written out: to the text (keys[0]) and to the chain itself (keys[1]), in one softmax."""
    scaling, softcap, sinks_H = rule
    texts, heads, rows, size = query_BHMD.shape
    groups, width = keys[0].shape[1:3]
    query = query_BHMD.reshape(texts, groups, heads // groups, rows, size)
    own_key, own_value = (part.reshape(texts, groups, -1, masks, size) for part in (keys[1], values[1]))
    to_text = torch.einsum("bgrmd,bgtd->bgrmt", query, keys[0])
    chained = query.unflatten(3, (-1, masks))
    to_chain = torch.einsum("bgrakd,bgald->bgrakl", chained, own_key).flatten(3, 4)
    scores = torch.cat([to_text, to_chain], dim=-1).float() * (scaling or size**-0.5)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~sees_BMS[:, None, None], -torch.inf)
    if sinks_H is not None:
        sinks = sinks_H.float().view(1, groups, -1, 1, 1).expand(*scores.shape[:4], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1).to(values[0].dtype)
    of_text = torch.einsum("bgrmt,bgtd->bgrmd", weights[..., :width], values[0])
    chain_weights = weights[..., width : width + masks].unflatten(3, (-1, masks))
    of_chain = torch.einsum("bgrakl,bgald->bgrakd", chain_weights, own_value).flatten(3, 4)
    return (of_text + of_chain).reshape(texts, heads, rows, -1)


def _fold(texts: int, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, heads x all rows x size each, as B x heads x q x size."""
    dtype = parts[-1].dtype  # under autocast, rotary embeddings turn queries and keys into float32
    return tuple(part.to(dtype).reshape(len(part), texts, -1, part.shape[-1]).transpose(0, 1) for part in parts)


def _unfold(output_BHqD: torch.Tensor) -> torch.Tensor:
    """Q x H x D."""
    return output_BHqD.transpose(1, 2).flatten(0, 1)
