"""Who can serve a model now, and which of them may take other layers meanwhile. Pure.

A machine holds one range at a time: one that is to hold another stops serving its own before it is
ready with that. So nothing is taken from it as long as nobody else is ready in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from meshnet.domain.ids import NodeId
from meshnet.tracker.chains import Machines, Seats, Task, best_chain, is_complete
from meshnet.tracker.observed import Observed


@dataclass(frozen=True, slots=True)
class Served:
    """The machines that chains for a model can be made of."""

    task: Task
    ready: Mapping[str, Seats]
    """By recipe, since a chain has nodes of one only."""

    @staticmethod
    def of(
        task: Task,
        seats: Seats,
        observed: Observed,
        now: float,
        unreachable: Collection[NodeId],
    ) -> Served:
        """Those of the ``seats`` whose machines are ready with them, and can be reached."""
        ready: dict[str, Seats] = {}
        for node, layers in seats.items():
            recipe = observed.recipe_of(node, task.digest, layers, now)
            if recipe is not None and node not in unreachable:
                ready.setdefault(recipe, {})[node] = layers
        return Served(task, ready)

    def is_whole(self, without: Collection[NodeId] = ()) -> bool:
        """Whether a request can be served by others than ``without``."""
        return any(
            is_complete(self.task, (it for node, it in seats.items() if node not in without))
            for seats in self.ready.values()
        )

    def bears(self, moved: Collection[NodeId]) -> bool:
        """Whether nothing that is served ends while these machines load other layers.

        Where no chain is whole yet, each of their ranges has to be ready on another machine.
        """
        if self.is_whole():
            return self.is_whole(moved)
        for seats in self.ready.values():
            there = {layers for node, layers in seats.items() if node not in moved}
            if not there.issuperset(seats.values()):
                return False
        return True

    def chain(self, machines: Machines) -> tuple[NodeId, ...]:
        """The best chain of machines that are ready; empty where none is whole."""
        chains = (best_chain(self.task, seats, machines) for seats in self.ready.values())
        return min(chains, default=(0.0, ()))[1]

    def movable(self, seats: Seats) -> list[NodeId]:
        """Those of the ``seats`` any single one of which may be given other layers.

        Its range is held by another too, or isn't needed; and :meth:`bears` it.
        """
        held = Counter(seats.values())
        is_held = is_complete(self.task, held)
        recipes = {node: recipe for recipe, known in self.ready.items() for node in known}
        ready = Counter((recipe, seats[node]) for node, recipe in recipes.items() if node in seats)
        answers: dict[object, bool] = {}

        def may(node: NodeId) -> bool:
            layers, recipe = seats[node], recipes.get(node)
            if held[layers] == 1 and not (
                is_held and is_complete(self.task, held.keys() - {layers})
            ):
                return False
            return recipe is None or ready[recipe, layers] > 1 or self.bears((node,))

        for node, layers in seats.items():
            key = (layers, recipes.get(node))
            if key not in answers:
                answers[key] = may(node)
        return [node for node, layers in seats.items() if answers[layers, recipes.get(node)]]
