"""Small things the risk modules share: equality by value, generator state."""

import json

import numpy as np


class ByValue:
    """Objects that are equal when their class and attributes are, and print as their constructor call."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({arguments})"


def generator_state(generator: np.random.Generator) -> str:
    """
    State of a NumPy generator as JSON, which ``torch.load(weights_only=True)`` accepts.

    :param generator: The generator to describe.
    :return: JSON text for :func:`restore_generator`.
    """
    return json.dumps(generator.bit_generator.state)


def restore_generator(generator: np.random.Generator, state: str) -> None:
    """
    Put a generator back into a state taken with :func:`generator_state`.

    :param generator: The generator to change, of the same kind as the saved one.
    :param state: JSON text.
    """
    generator.bit_generator.state = json.loads(state)
