"""The unified transformer: prompts before the normalisation, merging before the MLP (OTAS §III-B, Figure 6).

Modules have timm's names, so that its weights load by name.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn
from torch.nn import functional

from tidal.otas.manifest import FEATURES
from tidal_builders.otas.gammas import merges_by_layer
from tidal_builders.otas.merging import merge_tokens
from tidal_builders.otas.vit import Activation, Vit, VitConfig


class TransformerModel(nn.Module):
    """A vision transformer without head, whose γ is an argument of each call."""

    def __init__(self, config: VitConfig, *, accumulate: bool = False) -> None:
        """Make a transformer with torch's initial weights; see `load_transformer`.

        Args:
            config: Configuration of the transformer.
            accumulate: Whether a layer's prompts stay for later layers; otherwise each layer replaces them by its own
                (VPT-deep).
        """
        super().__init__()
        self.config, self.accumulate = config, accumulate
        width = config.width
        self.patch_embed = _PatchEmbed(config)
        self.cls_token = _tokens(1, width) if config.class_token else None
        self.reg_token = _tokens(config.registers, width) if config.registers else None
        embedded = {"all": config.tokens, "patches": config.patches, "none": 0}[config.positions]
        self.pos_embed = _tokens(embedded, width) if embedded else None
        self.norm_pre = _norm(config) if config.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = _norm(config) if config.final_norm == "before pooling" else nn.Identity()
        self.fc_norm = _norm(config) if config.final_norm == "after pooling" else nn.Identity()

    def forward(
        self,
        gamma: int,
        pixel_values: torch.Tensor,
        prompts: torch.Tensor | None = None,
        patches: torch.Tensor | None = None,
        *,
        scatter: bool = True,
    ) -> torch.Tensor:
        """Compute the features of a batch of images.

        Args:
            gamma: Number of prompts per layer if above 0; number of patches that each layer merges if below 0.
            pixel_values: Images, of shape [images, channels, height, width].
            prompts: Prompts of each image's task, of shape [images, layers, γ, width]; only if γ is above 0.
            patches: Indices of the patches that are used, of shape [images, any number]; only with γ = 0.
            scatter: Form of merging patches, see `merge_tokens`.

        Returns:
            Normalised and pooled features, of shape [images, width].
        """
        config, prefix = self.config, self.config.prefix
        tokens = self.embed(pixel_values)
        if patches is not None:
            seen = patches.unsqueeze(-1).expand(-1, -1, config.width)
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, seen)], dim=1)
        return self.encode(gamma, tokens, prompts, scatter=scatter)

    def encode(
        self, gamma: int, tokens: torch.Tensor, prompts: torch.Tensor | None = None, *, scatter: bool = True
    ) -> torch.Tensor:
        """Compute the features of embedded images.

        Args:
            gamma: See `forward`.
            tokens: Result of `embed`.
            prompts: See `forward`.
            scatter: See `forward`.

        Returns:
            Normalised and pooled features, of shape [images, width].
        """
        config, prefix = self.config, self.config.prefix
        merges = merges_by_layer(config, gamma)
        sizes = torch.ones_like(tokens[..., :1]) if gamma < 0 else None
        for layer, module in enumerate(self.blocks):
            block = cast(_Block, module)
            if gamma > 0:
                assert prompts is not None
                kept = tokens if self.accumulate else tokens[:, : config.tokens]
                # After the patches: the order of tokens has no effect, and pooled tokens keep their index.
                tokens = torch.cat([kept, prompts[:, layer]], dim=1)
            # Only after a merge: the logarithm of 1 adds nothing.
            bias = None if sizes is None or layer == 0 else sizes.log().transpose(1, 2).unsqueeze(1)
            tokens, keys = block.attend(tokens, bias)
            if sizes is not None and merges[layer]:
                mean_keys = keys.mean(dim=1)
                tokens, sizes = merge_tokens(tokens, sizes, mean_keys, merges[layer], prefix, scatter=scatter)
            tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
        tokens = self.norm(tokens)
        if config.pool == "token":
            pooled = tokens[:, 0]
        else:
            end = tokens.shape[1] if gamma < 0 else config.tokens
            patches = tokens[:, prefix:end]
            # A merged token counts for all its patches, so that the mean is over patches at every γ.
            pooled = patches.mean(dim=1) if sizes is None else (patches * sizes[:, prefix:]).sum(dim=1) / config.patches
        features: torch.Tensor = self.fc_norm(pooled)
        return features

    def embed(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the tokens that the first layer gets, of shape [images, tokens, width]; γ does not change them."""
        patches = self.patch_embed.proj(pixel_values).flatten(2).transpose(1, 2)
        if self.pos_embed is not None and self.config.positions == "patches":
            patches = patches + self.pos_embed
        front = [each.expand(patches.shape[0], -1, -1) for each in (self.cls_token, self.reg_token) if each is not None]
        tokens = torch.cat([*front, patches], dim=1)
        if self.pos_embed is not None and self.config.positions == "all":
            tokens = tokens + self.pos_embed
        normalised: torch.Tensor = self.norm_pre(tokens)
        return normalised


class GammaModule(nn.Module):
    """The transformer at one γ, with inputs and outputs by name, as the graph of an engine.

    Args:
        model: The transformer.
        gamma: The γ.
        scatter: Form of merging patches, see `merge_tokens`.
    """

    def __init__(self, model: TransformerModel, gamma: int, *, scatter: bool = True) -> None:
        super().__init__()
        self.model, self.gamma, self.scatter = model, gamma, scatter

    def forward(self, pixel_values: torch.Tensor, prompts: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """See `TransformerModel.forward`."""
        return {FEATURES: self.model(self.gamma, pixel_values, prompts, scatter=self.scatter)}


def load_transformer(vit: Vit, *, accumulate: bool = False) -> TransformerModel:
    """Make a transformer with a model's weights, which are not trained.

    Args:
        vit: Configuration and weights.
        accumulate: Whether a layer's prompts stay for later layers.

    Raises:
        RuntimeError: Weights are missing, unknown or of other shapes.
    """
    model = TransformerModel(vit.config, accumulate=accumulate)
    model.load_state_dict(dict(vit.tensors), strict=True)
    return model.eval().requires_grad_(False)


class _PatchEmbed(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.proj = nn.Conv2d(
            config.image.channels, config.width, config.patch, stride=config.patch, bias=config.patch_bias
        )


class _Block(nn.Module):
    """Modules of one layer; `TransformerModel.forward` combines its two halves."""

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.norm1 = _norm(config)
        self.attn = _Attention(config)
        self.ls1 = _LayerScale(config.width) if config.layer_scale else nn.Identity()
        self.norm2 = _norm(config)
        self.mlp = _Mlp(config)
        self.ls2 = _LayerScale(config.width) if config.layer_scale else nn.Identity()

    def attend(self, tokens: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the first half; returns tokens and the keys of each."""
        attended, keys = self.attn(self.norm1(tokens), bias)
        return tokens + self.ls1(attended), keys


class _Attention(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_width, config.epsilon) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_width, config.epsilon) if config.qk_norm else nn.Identity()
        self.proj = nn.Linear(config.width, config.width, bias=config.linear_bias)

    def forward(self, tokens: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend.

        Args:
            tokens: Tokens, of shape [images, tokens, width].
            bias: Addition to the scores of each key, of shape [images, 1, 1, tokens]; None for none.

        Returns:
            Tokens of shape [images, tokens, width], and keys of shape [images, heads, tokens, head width].
        """
        images, count, width = tokens.shape
        qkv = self.qkv(tokens).reshape(images, count, 3, self.heads, self.head_width).permute(2, 0, 3, 1, 4)
        queries, keys, values = qkv.unbind(0)
        queries, keys = self.q_norm(queries), self.k_norm(keys)
        found = _attend(queries, keys, values, bias)
        return self.proj(found.transpose(1, 2).reshape(images, count, width)), keys


class _Mlp(nn.Module):
    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.inner, bias=config.linear_bias)
        self.activation = config.activation
        self.fc2 = nn.Linear(config.inner, config.width, bias=config.linear_bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.fc2(_activate(self.fc1(tokens), self.activation))
        return projected


class _LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens * self.gamma


def _attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return attention [images, heads, tokens, head width] by the softmax of scaled scores."""
    if queries.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # For training with bf16, where torch's own attention takes ten times as long for few tokens.
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
        found: torch.Tensor = (scores if bias is None else scores + bias).softmax(dim=-1) @ values
        return found
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)


def _activate(values: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation == "quick_gelu":
        return values * torch.sigmoid(1.702 * values)
    return functional.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")


def _norm(config: VitConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, config.epsilon)


def _tokens(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(0.02 * torch.randn(1, count, width))
