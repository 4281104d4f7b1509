"""What a step of the reference network gives."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from wmrt.model.heads import Prediction


@dataclass
class Output:
    """Results of one step on the network's device, a row for each robot."""

    hidden: Tensor
    logits: Tensor
    chunk: Tensor
    action: Tensor
    prediction: Prediction

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name."""
        own = {name: tensor for name, tensor in vars(self).items() if name != "prediction"}
        return {**own, **vars(self.prediction)}

    def clone(self) -> Output:
        """A copy in memory of its own."""
        own = {name: tensor.clone() for name, tensor in self.tensors().items()}
        parts = Prediction(**{name: own.pop(name) for name in vars(self.prediction)})
        return Output(**own, prediction=parts)

    def copy_(self, other: Output) -> None:
        """Write what `other` holds into these tensors."""
        theirs = other.tensors()
        for name, tensor in self.tensors().items():
            tensor.copy_(theirs[name])
