"""The allocation problem as a mixed-integer linear programme for HiGHS.

The objective is not linear in N_i, but it is once every (runtime, overflow into it, instances) is a binary choice of
its own: the choices are arcs of a network whose nodes are (runtime, overflow), an allocation is a path through it,
and Σ N_i = G is one more constraint on the path.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tests.arlo.scheduling.equations import least_instances, step
from tidal.arlo.scheduling import AllocationProblem

_Node = tuple[int, float]


def lowest_cost_by_highs(problem: AllocationProblem) -> float:
    """Return the objective of Eq. 1 at HiGHS's optimum, without a gap."""
    least = least_instances(problem)
    slack, end = problem.gpus - sum(least), (len(least), 0.0)
    nodes: dict[_Node, int] = {(0, 0.0): 0}
    arcs: list[tuple[_Node, _Node, int, float]] = []
    level: list[_Node] = [(0, 0.0)]
    for i in range(len(least)):
        following: list[_Node] = []
        for node in level:
            for count in range(least[i], least[i] + slack + 1):
                added, left = step(problem, i, node[1], count)
                target = end if i == len(least) - 1 else (i + 1, left)
                if target not in nodes:
                    nodes[target] = len(nodes)
                    following.append(target)
                arcs.append((node, target, count, added))
        level = following
    columns = range(len(arcs))
    leave = coo_array((np.ones(len(arcs)), ([nodes[arc[0]] for arc in arcs], columns)), (len(nodes), len(arcs)))
    enter = coo_array((np.ones(len(arcs)), ([nodes[arc[1]] for arc in arcs], columns)), (len(nodes), len(arcs)))
    balance = np.zeros(len(nodes))
    balance[nodes[0, 0.0]], balance[nodes[end]] = 1, -1
    counts = np.array([[arc[2] for arc in arcs]])
    result = milp(
        [arc[3] for arc in arcs],
        constraints=[LinearConstraint(leave - enter, balance, balance), LinearConstraint(counts, *[problem.gpus] * 2)],
        integrality=np.ones(len(arcs)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert result.success, result.message
    return float(result.fun)
