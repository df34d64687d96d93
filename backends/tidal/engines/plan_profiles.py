"""The optimisation profiles of a TensorRT plan, which are the shapes that it has kernels for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidal.engines.base import Dim

# Inclusive bounds of each dimension of each input, by name. A profile is static if all bounds are equal.
Profile = Mapping[str, tuple[tuple[int, int], ...]]

# Ends of the bands that a dynamic dimension is divided into. A plan's kernels are chosen for one shape of each profile,
# so that with one profile short inputs would run on kernels for the longest.
_BAND_ENDS = (32, 64, 128, 256, 512, 1024, 2048)


def profiles_for(shapes: Mapping[str, tuple[Dim, ...]]) -> tuple[Profile, ...]:
    """The profiles that serve some shapes.

    A single query has a profile with batch size 1, so that with a fixed length min = opt = max, and kernels are chosen
    for exactly that shape. Larger batches share a second profile. An input whose first dimension is fixed, while those
    of other inputs are not, has no batch axis: that dimension is the same in both profiles. A dynamic length that all
    inputs have in common is divided into bands, each with both profiles.

    Args:
        shapes: Dimensions of each input by name.
    """
    bounds = {name: tuple((dim, dim) if isinstance(dim, int) else dim for dim in dims) for name, dims in shapes.items()}
    batched = {name for name, dims in shapes.items() if not isinstance(dims[0], int)} or set(shapes)
    low = min(bounds[name][0][0] for name in batched)
    high = max(bounds[name][0][1] for name in batched)
    batches = [(low, high)] if low == high or low > 1 else [(1, 1), (2, high)]
    lengths = {dim for name in bounds for dim in bounds[name][name in batched :] if dim[0] != dim[1]}
    bands = _bands(*next(iter(lengths))) if len(lengths) == 1 else ()
    found = []
    for band in bands or (None,):
        for batch in batches:
            within = {name: tuple(band if band and dim in lengths else dim for dim in bounds[name]) for name in bounds}
            found.append({name: (batch, *dims[1:]) if name in batched else dims for name, dims in within.items()})
    return tuple(found)


def _bands(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """Divide a dimension's bounds at the ends of the bands."""
    ends = [*(end for end in _BAND_ENDS if low <= end < high), high]
    return tuple(zip([low, *(end + 1 for end in ends[:-1])], ends, strict=True))


def serving(profiles: Sequence[Profile], shapes: Mapping[str, tuple[Dim, ...]]) -> tuple[int, ...]:
    """Numbers of the profiles that serve some shapes together; empty if the plan was not made for them.

    Args:
        profiles: Profiles of the plan.
        shapes: Dimensions of each input by name.
    """
    needed = profiles_for(shapes)
    numbers = tuple(profiles.index(profile) for profile in needed if profile in profiles)
    return numbers if len(numbers) == len(needed) else ()


def fixed_dimensions(profiles: Sequence[Profile]) -> dict[str, tuple[int, ...]]:
    """Dimensions of each input that are equal in all profiles; -1 for the others."""
    return {
        name: tuple(
            low if all(profile[name][axis] == (low, low) for profile in profiles) else -1
            for axis, (low, _) in enumerate(profiles[0][name])
        )
        for name in profiles[0]
    }


def holds(profile: Profile, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a batch of these shapes is within a profile's bounds."""
    return all(
        low <= size <= high
        for name, shape in shapes.items()
        for size, (low, high) in zip(shape, profile[name], strict=True)
    )
