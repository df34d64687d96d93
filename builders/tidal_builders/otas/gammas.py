"""γ, the change of the number of tokens per layer, adapted to a model's tokens and layers (OTAS §III-B, §V)."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.errors import InvalidArgument
from tidal_builders.otas.vit import VitConfig

# List L of §V, for the patches and layers of ViT-Base.
PAPER_GAMMAS = (-20, -15, -10, -5, 0, 2, 4, 8)
_PAPER_PATCHES, _PAPER_LAYERS = 196, 12
# Merging leaves at least this many patches.
MIN_PATCHES = 4
_BYTES = 4


def default_gammas(config: VitConfig) -> tuple[int, ...]:
    """Return the paper's list, scaled to a model's patches and layers; ascending and distinct."""
    factor = config.patches / _PAPER_PATCHES * _PAPER_LAYERS / config.layers
    scaled = {round(gamma * factor) or (gamma > 0) - (gamma < 0) for gamma in PAPER_GAMMAS}
    return distinct_gammas(config, sorted(scaled))


def distinct_gammas(config: VitConfig, gammas: Sequence[int]) -> tuple[int, ...]:
    """Return the γ that differ in tokens: of several that merge all patches they may, the one closest to 0.

    Args:
        config: Configuration of the transformer.
        gammas: List of γ.
    """
    kept: dict[tuple[int, ...], int] = {}
    for gamma in sorted(gammas, reverse=True):
        kept.setdefault(tokens_by_layer(config, gamma, accumulate=False), gamma)
    return tuple(sorted(kept.values()))


def check_gammas(config: VitConfig, gammas: Sequence[int]) -> tuple[int, ...]:
    """Check the γ list of a spec, and return it in ascending order.

    Args:
        config: Configuration of the transformer.
        gammas: List of γ.

    Raises:
        InvalidArgument: 0 is missing, or two of them give the same number of tokens in every layer.
    """
    ascending = tuple(sorted(set(gammas)))
    if 0 not in ascending:
        raise InvalidArgument(f"field 'gammas': 0, the unchanged model, is missing in {list(ascending)}")
    distinct = distinct_gammas(config, ascending)
    if lost := sorted(set(ascending) - set(distinct)):
        raise InvalidArgument(
            f"field 'gammas': {', '.join(map(str, lost))} would not merge more than the next one, which merges as many "
            f"of the {config.patches} patches as possible; accepted, for example: {list(default_gammas(config))}"
        )
    return ascending


def merges_by_layer(config: VitConfig, gamma: int) -> tuple[int, ...]:
    """Return the number of patches that each layer merges at γ: |γ|, up to half of the rest; `MIN_PATCHES` stay."""
    left, merges = config.patches, []
    for _ in range(config.layers):
        count = max(0, min(-gamma, left // 2, left - MIN_PATCHES))
        merges.append(count)
        left -= count
    return tuple(merges)


def tokens_by_layer(config: VitConfig, gamma: int, *, accumulate: bool) -> tuple[int, ...]:
    """Return the number of tokens in the attention of each layer, and, as the last entry, after the last layer.

    Args:
        config: Configuration of the transformer.
        gamma: The γ.
        accumulate: Whether a layer's prompts stay for later layers.
    """
    if gamma > 0:
        steps = [gamma] * config.layers if not accumulate else [gamma * (layer + 1) for layer in range(config.layers)]
        return (*(config.tokens + step for step in steps), config.tokens + steps[-1])
    counts = [config.tokens]
    for merged in merges_by_layer(config, gamma):
        counts.append(counts[-1] - merged)
    return tuple(counts)


def image_bytes(config: VitConfig, gamma: int, *, accumulate: bool) -> int:
    """Return the peak memory per image of a running batch in bytes: the tensors of a layer that exist at the same time.

    In attention these are the tokens, queries, keys, values, and the scores of every head; in the MLP the tokens and
    the hidden layer before and after the activation.

    Args:
        config: Configuration of the transformer.
        gamma: The γ.
        accumulate: Whether a layer's prompts stay for later layers.
    """
    most = 0
    for tokens in tokens_by_layer(config, gamma, accumulate=accumulate):
        attention = tokens * 5 * config.width + config.heads * tokens * tokens
        most = max(most, attention, tokens * (config.width + 2 * config.inner))
    return _BYTES * (most + config.image.channels * config.image.height * config.image.width)
