"""γ, the change of the number of tokens a layer, brought to a model's tokens and layers (OTAS §III-B, §V)."""

from __future__ import annotations

from collections.abc import Sequence

from tidal.errors import InvalidArgument
from tidal_builders.otas.vit import VitConfig

# L of §V, for ViT-Base: so many patches, so many layers.
PAPER_GAMMAS = (-20, -15, -10, -5, 0, 2, 4, 8)
_PAPER_PATCHES, _PAPER_LAYERS = 196, 12
# Merging leaves so many patches at least, where there are as many.
LEAST_PATCHES = 4
_BYTES = 4


def default_gammas(config: VitConfig) -> tuple[int, ...]:
    """The paper's list in the same proportion to the model's patches and layers; ascending, and without those that
    merge no more than the next."""
    factor = config.patches / _PAPER_PATCHES * _PAPER_LAYERS / config.layers
    scaled = {round(gamma * factor) or (gamma > 0) - (gamma < 0) for gamma in PAPER_GAMMAS}
    return distinct_gammas(config, sorted(scaled))


def distinct_gammas(config: VitConfig, gammas: Sequence[int]) -> tuple[int, ...]:
    """Those of ascending γ that run differently: of several that merge all there is to merge, the smallest is meant."""
    kept: dict[tuple[int, ...], int] = {}
    for gamma in sorted(gammas, reverse=True):
        kept.setdefault(tokens_by_layer(config, gamma, accumulate=False), gamma)
    return tuple(sorted(kept.values()))


def check_gammas(config: VitConfig, gammas: Sequence[int]) -> tuple[int, ...]:
    """A γ list of a spec, ascending.

    Raises:
        InvalidArgument: 0 is missing, or two of them would run the same.
    """
    ascending = tuple(sorted(set(gammas)))
    if 0 not in ascending:
        raise InvalidArgument(f"field 'gammas': 0, the unchanged model, is missing in {list(ascending)}")
    distinct = distinct_gammas(config, ascending)
    if lost := sorted(set(ascending) - set(distinct)):
        raise InvalidArgument(
            f"field 'gammas': {', '.join(map(str, lost))} would merge no more than the next one does, for all "
            f"{config.patches} patches are merged as far as they may be; accepted are for example "
            f"{list(default_gammas(config))}"
        )
    return ascending


def merges_by_layer(config: VitConfig, gamma: int) -> tuple[int, ...]:
    """Patches that each layer merges into others at γ: |γ|, but at most half of those that are left, and so many that
    `LEAST_PATCHES` stay."""
    left, merges = config.patches, []
    for _ in range(config.layers):
        count = max(0, min(-gamma, left // 2, left - LEAST_PATCHES))
        merges.append(count)
        left -= count
    return tuple(merges)


def tokens_by_layer(config: VitConfig, gamma: int, *, accumulate: bool) -> tuple[int, ...]:
    """Tokens that attend to each other in each layer at γ, and in the last entry those that leave the last layer."""
    if gamma > 0:
        steps = [gamma] * config.layers if not accumulate else [gamma * (layer + 1) for layer in range(config.layers)]
        return (*(config.tokens + step for step in steps), config.tokens + steps[-1])
    counts = [config.tokens]
    for merged in merges_by_layer(config, gamma):
        counts.append(counts[-1] - merged)
    return tuple(counts)


def image_bytes(config: VitConfig, gamma: int, *, accumulate: bool) -> int:
    """Memory that an image of a batch takes at most while it runs: the tensors of a layer that are in use at once.

    In attention these are the tokens, their queries, keys and values, and the scores of every head; in the MLP the
    tokens and the hidden layer before and after the activation.
    """
    most = 0
    for tokens in tokens_by_layer(config, gamma, accumulate=accumulate):
        attention = tokens * 5 * config.width + config.heads * tokens * tokens
        most = max(most, attention, tokens * (config.width + 2 * config.inner))
    return _BYTES * (most + config.image.channels * config.image.height * config.image.width)
