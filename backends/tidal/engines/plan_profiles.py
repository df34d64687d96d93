"""The optimisation profiles of a TensorRT plan: for which shapes it has kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidal.engines.base import Dim

# Inclusive bounds of each dimension of each input. Where all bounds are equal, a profile is static.
Profile = Mapping[str, tuple[tuple[int, int], ...]]


def profiles_for(shapes: Mapping[str, tuple[Dim, ...]]) -> tuple[Profile, ...]:
    """The profiles that serve these shapes.

    A lone query gets a profile of its own, with a batch of 1, so that with a fixed length min = opt = max and its
    kernels are chosen for exactly that shape. Larger batches share a second one. An input whose first dimension is
    fixed while others' are not has no batch: it has that dimension in both.
    """
    bounds = {name: tuple((dim, dim) if isinstance(dim, int) else dim for dim in dims) for name, dims in shapes.items()}
    batched = {name for name, dims in shapes.items() if not isinstance(dims[0], int)} or set(shapes)
    low = min(bounds[name][0][0] for name in batched)
    high = max(bounds[name][0][1] for name in batched)
    batches = [(low, high)] if low == high or low > 1 else [(1, 1), (2, high)]
    return tuple(
        {name: (batch, *dims[1:]) if name in batched else dims for name, dims in bounds.items()} for batch in batches
    )


def serving(profiles: Sequence[Profile], shapes: Mapping[str, tuple[Dim, ...]]) -> tuple[int, ...]:
    """Numbers of the profiles that serve these shapes together; empty where a plan was not made for them."""
    found = tuple(profiles.index(wanted) for wanted in profiles_for(shapes) if wanted in profiles)
    return found if len(found) == len(profiles_for(shapes)) else ()


def fixed_dimensions(profiles: Sequence[Profile]) -> dict[str, tuple[int, ...]]:
    """Each input's dimensions that all profiles agree on, and -1 for the others."""
    return {
        name: tuple(
            low if all(profile[name][axis] == (low, low) for profile in profiles) else -1
            for axis, (low, _) in enumerate(profiles[0][name])
        )
        for name in profiles[0]
    }


def holds(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a batch of these shapes is inside a profile."""
    return all(
        low <= size <= high
        for name, shape in shapes.items()
        for size, (low, high) in zip(shape, profile[name], strict=True)
    )
