"""Many robots in one vectorised Gymnasium environment, each with a memory and breakers of its own.

envs = gymnasium.make_vec("wmrt.envs:wmrt/Highway-v0", num_envs=4, wrappers=[StateInfo])
controllers = [Controller(model.fork(), 0.1, clock=StepClock(0.1)) for _ in range(4)]
drivers = VectorController(controllers, envs.metadata["autoreset_mode"])
drivers.reset(*envs.reset(seed=7))
for _ in range(300):
    drivers.observe(*envs.step(drivers.act()))
"""

from wmrt.control.vector.controller import VectorController
from wmrt.control.vector.driving import drive_vector
from wmrt.control.vector.episodes import Episodes
from wmrt.control.vector.gym_wrapper import ControlledVectorEnv
from wmrt.control.vector.shared import SharedStep
from wmrt.control.vector.states import StateInfo

__all__ = [
    "ControlledVectorEnv",
    "Episodes",
    "SharedStep",
    "StateInfo",
    "VectorController",
    "drive_vector",
]
