"""A head whose controller cannot start, on a real Ray."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import cast

import pytest

from tests.cluster.one_node import ray_of_one_node
from tidal.cluster import ray_node
from tidal.cluster.connection import call_controller
from tidal.controller.decisions import PlanSettings
from tidal.errors import Unavailable


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
def test_a_controller_is_waited_for(tmp_path: Path) -> None:
    unusable = cast(PlanSettings, None)
    with ray_of_one_node(tmp_path) as (ray, started, _):
        with pytest.raises(Unavailable, match="the controller does not start"):
            ray_node.start_controller(ray, started, unusable)
        ray_node.start_controller(ray, started, PlanSettings())
        assert call_controller("status")["nodes"] == []
