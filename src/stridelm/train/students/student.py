"""Teacher and student of a conversion: two networks that share weights. The student's linear layers have an additional
low-rank part.

The base model's weights are held once and never change; the low-rank parts, the mask embeddings and the sequential head
are trained. Only mask rows pass through a gated student, so no gate is needed here; a student without a gate also reads
the text itself.

Shape letters: B texts, T tokens, N = B x T real rows, A anchors of a text, X = B x A chains, K masks of a chain, S
slots of a chain that are judged (its masks, and its anchor if that is trained, too), C model width, r rank.
"""

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase

from stridelm.backends.common.scorer import cap_of, capped
from stridelm.backends.torch.attention import attend
from stridelm.models.adapter import MASK_EMBEDDING, Adapter, AdapterConfig, sequential_tensors, tail_tensors
from stridelm.models.mask_token import MASK_TOKEN
from stridelm.models.prediction_heads import PredictionHeads
from stridelm.models.sequential_head import SequentialHead
from stridelm.models.support import UnsupportedModel
from stridelm.params import InputError
from stridelm.train.students.passes import ChainPass, JointPass, TextPass

CHUNK_LOGITS = 2**27
"""Maximum number of logits in memory at once."""
_OUTSIDE_GRAPHS = "stridelm_outside_graphs"
_UNUSED = ("reserved", "unused", "placeholder")


class LowRankLinear(nn.Module):
    """base(x) + up(down(x)). `up` is initialised to zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        device = base.weight.device
        self.down = nn.Parameter(
            torch.randn(rank, base.in_features, device="cpu").to(device) / math.sqrt(base.in_features)
        )
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = functional.linear(x, self.down.to(x.dtype))
        return self.base(x) + functional.linear(low, self.up.to(x.dtype))


class Student(nn.Module):
    """A network with low-rank parts, mask embeddings and perhaps a sequential head: turns masks into hidden states."""

    has_own_layers = False

    def __init__(
        self,
        network: PreTrainedModel,
        rank: int,
        masks: int,
        sequential_size: int,
        *,
        tail_heads: int = 0,
        tail_size: int = 0,
        is_gated: bool = True,
    ) -> None:
        super().__init__()
        self.masks, self.rank, self.is_gated = masks, rank, is_gated
        self.drafts = masks + tail_heads
        self.judges_anchor = not is_gated
        shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
        self.network: PreTrainedModel = copy.deepcopy(network, memo=shared)
        self.targets, self.unadapted = targets_of(network)
        for target in self.targets:
            parent, name = target.rsplit(".", 1)
            module = self.network.get_submodule(parent)
            setattr(module, name, LowRankLinear(getattr(module, name), rank))
        embedding: Any = network.get_input_embeddings()
        # The embedding's output, not its weight: Gemma scales embeddings.
        with torch.no_grad():
            embedded_VC = embedding(torch.arange(len(embedding.weight), device=embedding.weight.device))
        mean_C = embedded_VC.mean(dim=0, dtype=torch.float32)
        # Without a gate, one embedding for all depths: engines that run the merged model know only one mask token.
        self.mask_embedding = nn.Parameter(mean_C.expand(masks if is_gated else 1, -1).clone())
        self.sequential = SequentialHead(len(mean_C), sequential_size).to(mean_C.device) if sequential_size else None
        self.tail = PredictionHeads(len(mean_C), tail_heads, tail_size).to(mean_C.device) if tail_heads else None

    def slots(
        self, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, texts: TextPass | None, hidden_NC: torch.Tensor | None
    ) -> torch.Tensor:
        """The final hidden states of all slots, X x S x C. `texts` and `hidden` come from the teacher's pass."""
        if self.is_gated:
            assert texts is not None, "a gated student reads the teacher's keys and values"
            return self.outputs(ChainPass(texts, anchors_BA, self.masks))
        return read_together(self.network, ids_BT, anchors_BA, self.mask_rows())

    def mask_rows(self) -> torch.Tensor:
        """The embeddings of a chain's masks: K x C."""
        return self.mask_embedding.to(self.network.dtype).expand(self.masks, -1)

    def outputs(self, chains: ChainPass) -> torch.Tensor:
        """The final hidden states of all mask rows, and behind them what the tail heads make of the last: X x D x C."""
        hidden_XKC = read_chains(self.network, chains, self.mask_rows())
        return hidden_XKC if self.tail is None else torch.cat([hidden_XKC, self.tail(hidden_XKC[:, -1])], dim=1)

    def continue_from(self, adapter: Adapter) -> None:
        """Take an adapter's weights. A larger rank than its own changes nothing at first, because the additional second
        factors are zero; tail heads that the adapter lacks stay as they are."""
        config = adapter.config
        wrong = sorted(set(self.targets) ^ set(config.targets))
        if wrong:
            raise InputError(f"the adapter and the model differ in the layer {wrong[0]}: it is for another model")
        with torch.no_grad():
            for target in config.targets:
                layer: Any = self.network.get_submodule(target)
                down, up = adapter.low_rank(target)
                if (down.shape[1], up.shape[0]) != (layer.down.shape[1], layer.up.shape[0]):
                    raise InputError(
                        f"the adapter's {target} takes {down.shape[1]} values to {up.shape[0]}, the model's "
                        f"{layer.down.shape[1]} to {layer.up.shape[0]}: use the adapter of this model"
                    )
                layer.down[: config.rank].copy_(down)
                layer.up[:, : config.rank].copy_(up)
            # On disk every depth has a row, even if one embedding was trained for all depths.
            self.mask_embedding = nn.Parameter(adapter.mask_embedding.to(self.mask_embedding, copy=True))
        for own, stored in ((self.sequential, adapter.sequential_head()), (self.tail, adapter.tail_heads())):
            if own is not None and stored is not None:
                own.load_state_dict(stored.state_dict())

    def adapter(self, base: str, fingerprint: str, tokenizer: PreTrainedTokenizerBase) -> Adapter:
        """The trained parts, in the form in which they are saved."""
        vocabulary = int(self.network.config.get_text_config().vocab_size)
        token, token_id = mask_token(tokenizer, vocabulary)
        tensors: dict[str, torch.Tensor] = {
            MASK_EMBEDDING: self.mask_embedding.detach().expand(self.masks, -1).contiguous()
        }
        for target in self.targets:
            layer: Any = self.network.get_submodule(target)
            tensors[f"{target}.down"], tensors[f"{target}.up"] = layer.down.detach(), layer.up.detach()
        if self.sequential is not None:
            tensors |= sequential_tensors(self.sequential)
        if self.tail is not None:
            tensors |= tail_tensors(self.tail)
        config = AdapterConfig(
            base=base,
            fingerprint=fingerprint,
            width=self.mask_embedding.shape[1],
            rank=self.rank,
            masks=self.masks,
            mask_token=token,
            mask_token_id=token_id,
            extends_vocabulary=token_id >= vocabulary,
            targets=self.targets,
            unadapted=self.unadapted,
            sequential_size=self.sequential.size if self.sequential is not None else 0,
            tail_heads=0 if self.tail is None else len(self.tail),
            tail_size=0 if self.tail is None else self.tail.up_HSC.shape[1],
        )
        return Adapter(config, tensors, is_gated=self.is_gated)

    @classmethod
    def of(cls, network: PreTrainedModel, adapter: Adapter) -> "Student":
        """The student that an adapter was saved from."""
        config = adapter.config
        student = cls(
            network, config.rank, config.masks, config.sequential_size,
            tail_heads=config.tail_heads, tail_size=config.tail_size, is_gated=adapter.is_gated,
        )  # fmt: skip
        student.continue_from(adapter)
        return student.requires_grad_(False)


class MaskRows:
    """A model whose real rows and mask rows pass through the same weights. Beside these it has only mask embeddings,
    and perhaps a sequential head."""

    judges_anchor = True

    def __init__(self, network: PreTrainedModel, adapter: Adapter, masks: int) -> None:
        """`masks`: the length of its chains."""
        assert not adapter.config.targets
        self.network, self.masks = network, masks
        self.drafts = masks
        head = adapter.sequential_head()
        self.sequential = None if head is None else head.to(network.device)
        self._rows_KC = adapter.mask_embedding[:masks].to(network.device, network.dtype)

    def outputs(self, chains: ChainPass) -> torch.Tensor:
        return read_chains(self.network, chains, self._rows_KC)


def targets_of(network: PreTrainedModel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The linear layers that get a low-rank part, and the layers with weights that get none (experts)."""
    targets: list[str] = []
    unadapted: list[str] = []
    for name, module in network.named_modules():
        if ".layers." not in f".{name}.":
            continue
        if "experts" in name.split("."):
            if any(True for _ in module.parameters(recurse=False)):
                unadapted.append(name)
        elif type(module) is nn.Linear:
            targets.append(name)
    if not targets:
        raise UnsupportedModel(f"{network.config.model_type} has no linear layers that could be adapted")
    return tuple(targets), tuple(unadapted)


def mask_token(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> tuple[str, int]:
    """Name and id of a token for masks: an id that the tokenizer does not use, else a token whose name says that it is
    unused, else a new one."""
    used = set(tokenizer.get_vocab().values())
    free = [token for token in range(vocabulary) if token not in used]
    if free:
        return MASK_TOKEN, free[0]
    added: dict[str, int] = tokenizer.get_added_vocab()  # type: ignore[operator]
    for name, token in sorted(added.items(), key=lambda entry: entry[1]):
        if any(word in name.lower() for word in _UNUSED) and token < vocabulary:
            return name, token
    return MASK_TOKEN, max(vocabulary, max(used) + 1)


def run(network: PreTrainedModel, rows: Any, positions_1Q: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    """Run a pass through a network's layers. Returns the final hidden states, Q x C."""
    base: Any = network.base_model
    output = base(position_ids=positions_1Q, use_cache=False, stride_step=rows, **inputs)
    return output.last_hidden_state[0]


@torch.no_grad()
def read_texts(network: PreTrainedModel, ids_BT: torch.Tensor) -> tuple[TextPass, torch.Tensor]:
    """The teacher's pass: its keys and values, and its final hidden states, N x C."""
    return read_real_rows(network, ids_BT)


def read_real_rows(network: PreTrainedModel, ids_BT: torch.Tensor) -> tuple[TextPass, torch.Tensor]:
    """As `read_texts`, but with gradients."""
    texts, width = ids_BT.shape
    rows = TextPass(texts, width)
    positions = torch.arange(width, device=ids_BT.device).expand(texts, -1).reshape(1, -1)
    return rows, run(network, rows, positions, input_ids=ids_BT.reshape(1, -1))


def read_chains(network: PreTrainedModel, chains: ChainPass, mask_rows_KC: torch.Tensor) -> torch.Tensor:
    """The final hidden states of the chains' masks, X x K x C. Their texts must have been read."""
    count, masks = chains.anchors_BA.numel(), len(mask_rows_KC)
    rows = mask_rows_KC.expand(count, -1, -1).reshape(1, count * masks, -1)
    hidden = run(network, chains, chains.positions.reshape(1, -1), inputs_embeds=rows)
    return hidden.view(count, masks, -1)


def read_together(
    network: PreTrainedModel, ids_BT: torch.Tensor, anchors_BA: torch.Tensor, mask_rows_KC: torch.Tensor
) -> torch.Tensor:
    """Run texts and chains in one pass with gradients. Returns, per chain, the final hidden states of the anchor, then
    of its masks: X x (1 + K) x C."""
    chains = ChainPass(TextPass(*ids_BT.shape), anchors_BA, len(mask_rows_KC))
    joint = JointPass(chains)
    count, masks = anchors_BA.numel(), len(mask_rows_KC)
    embedding: Any = network.get_input_embeddings()
    embedded_NC = embedding(ids_BT.flatten())
    rows = torch.cat([embedded_NC, mask_rows_KC.to(embedded_NC.dtype).expand(count, -1, -1).flatten(0, 1)])
    hidden = run(network, joint, joint.positions[None], inputs_embeds=rows[None])
    text_NC, masks_QC = hidden.split([joint.rows, count * masks])
    anchors_XC = text_NC[flat_places(anchors_BA, ids_BT.shape[1])]
    return torch.cat([anchors_XC[:, None], masks_QC.view(count, masks, -1)], dim=1)


def flat_places(places: torch.Tensor, width: int) -> torch.Tensor:
    """Positions in texts of `width` tokens (B x ...) -> indices of the real rows of all texts, flat."""
    first = torch.arange(len(places), device=places.device) * width
    return (places + first.view(-1, *(1,) * (places.dim() - 1))).flatten()


def computing_in(dtype: torch.dtype, device: torch.device) -> torch.autocast:
    """Autocast: products run in this precision, regardless of the precision of the weights."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


class OutputHead:
    """Hidden states -> logits in float32, as the network itself computes them."""

    def __init__(self, network: PreTrainedModel) -> None:
        self.linear: Any = network.get_output_embeddings()
        self.softcap = cap_of(network)
        self._check(network)

    def __call__(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        return self.with_weight(hidden_XC, self.linear.weight)

    def with_weight(self, hidden_XC: torch.Tensor, weight_VC: torch.Tensor) -> torch.Tensor:
        """The same with a given output matrix, which may be another leaf of the autograd graph."""
        logits_XV = functional.linear(hidden_XC.to(weight_VC.dtype), weight_VC, self.linear.bias).float()
        return capped(logits_XV, self.softcap)

    @torch.no_grad()
    def best(self, hidden_XC: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each row, in chunks: the logits of all rows are never in memory at once."""
        return torch.cat([self(part).argmax(dim=-1) for part in self.chunks(hidden_XC)])

    @torch.no_grad()
    def likeliest(self, hidden_XC: torch.Tensor, count: int) -> torch.Tensor:
        """The `count` likeliest tokens of each row, best first, or all if there are fewer: X x N."""
        count = min(count, len(self.linear.weight))
        return torch.cat([self(part).topk(count).indices for part in self.chunks(hidden_XC)])

    def chunks(self, hidden_XC: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Parts whose logits may be in memory at once."""
        return hidden_XC.split(max(1, CHUNK_LOGITS // len(self.linear.weight)))

    @torch.no_grad()
    def _check(self, network: PreTrainedModel) -> None:
        """Refuse a model that computes its logits in another way."""
        ids = torch.arange(1, 5, device=network.device)[None] % network.config.get_text_config().vocab_size
        positions = torch.arange(4, device=network.device)[None]
        dtype = self.linear.weight.dtype  # trained layers are float32, the output matrix may not be
        with computing_in(dtype, network.device):
            hidden = run(network, TextPass(1, 4), positions, input_ids=ids)
            own = network(input_ids=ids, position_ids=positions, use_cache=False, stride_step=TextPass(1, 4)).logits[0]
        if not torch.allclose(self(hidden), own.float(), rtol=1e-2, atol=1e-2):
            raise UnsupportedModel(f"{network.config.model_type} changes its logits behind the output layer")


def compile_layers(*networks: PreTrainedModel) -> None:
    """Compile every layer, which fuses small operations. Attention is left out: it differs between layers."""
    AttentionInterface.register(_OUTSIDE_GRAPHS, torch.compiler.disable(attend))
    for network in networks:
        network.set_attn_implementation(_OUTSIDE_GRAPHS)
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    if hasattr(layer, "self_attn"):
                        layer.compile(dynamic=False)
