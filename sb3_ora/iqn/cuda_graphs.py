"""
Updates as CUDA graphs. A small network's update is hundreds of kernels, each of which takes longer to launch than to run;
a graph launches all of them at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch as th
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_ora.iqn.finite import is_fused

if TYPE_CHECKING:
    from sb3_ora.iqn.iqn import IQN

#: Updates in a row of the same kind before one is recorded; the first of a process allocate what a graph must find there
WARM_UP = 10
#: Kinds of updates that are recorded, such as sizes of the batch
MAX_RECORDINGS = 4
#: By how much of its length a replayed update may differ from the one that it stands for
TOLERANCE = 0.01


class Update(NamedTuple):
    """What a gradient step returns."""

    loss: th.Tensor  # ()
    taken: th.Tensor  # quantiles of the actions taken, (K, N, B)


class Recorder(Protocol):
    """Records what a function does on tensors, to do it again."""

    def warm_up(self, function: Callable[[], Update]) -> Update:
        """Call the function as it will be recorded."""

    def record(self, function: Callable[[], Update]) -> tuple[Update, Callable[[], None]]:
        """Record the function, without effect on its tensors; what it returns, and what fills that in."""


class CudaRecorder:
    """
    Recorder by CUDA graphs.

    :param device: a CUDA device
    """

    def __init__(self, device: th.device):
        self.device = device
        self.stream: th.cuda.Stream | None = None

    def warm_up(self, function: Callable[[], Update]) -> Update:
        """
        Call the function on a stream of its own, as torch wants it before recording.

        :param function: an update
        :return: what it returns
        """
        if self.stream is None:
            self.stream = th.cuda.Stream(self.device)
        present = th.cuda.current_stream(self.device)
        self.stream.wait_stream(present)
        with th.cuda.stream(self.stream):
            result = function()
        present.wait_stream(self.stream)
        for tensor in result:
            tensor.record_stream(present)
        return result

    def record(self, function: Callable[[], Update]) -> tuple[Update, Callable[[], None]]:
        """
        :param function: an update
        :return: where its results will be, and what launches the graph
        """
        graph, present = th.cuda.CUDAGraph(), th.cuda.current_stream(self.device)
        index = th.cuda.current_device() if self.device.index is None else self.device.index
        generator = th.cuda.default_generators[index]
        before = generator.clone_state()
        with th.cuda.device(self.device):
            try:
                # On a stream of this device: torch would take one for all recordings, of the first one's device. What
                # other threads do on it, such as those of a search, neither disturbs the recording nor is disturbed.
                with th.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                    result = function()
            except BaseException:
                # Where the recording broke off, torch may leave its stream in place, and a generator for graphs only
                th.cuda.set_stream(present)
                try:
                    th.rand((), device=self.device)
                except RuntimeError:
                    generator.graphsafe_set_state(before)
                raise
        return result, graph.replay

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stream": None}  # which cannot be copied


class Inputs(NamedTuple):
    """The arguments of an update."""

    batch: ReplayBufferSamples
    levels: th.Tensor | None

    def tensors(self) -> list[th.Tensor]:
        """
        :return: all tensors in it, in order
        """
        tensors: list[th.Tensor] = []
        for part in (*self.batch, self.levels):
            if part is not None:
                tensors += part.values() if isinstance(part, dict) else [part]
        return tensors

    def clone(self) -> Inputs:
        """
        :return: the same in a memory of its own
        """
        parts: list[Any] = []
        for part in (*self.batch, self.levels):
            if isinstance(part, dict):
                parts.append({key: tensor.clone() for key, tensor in part.items()})
            else:
                parts.append(None if part is None else part.clone())
        return Inputs(type(self.batch)(*parts[:-1]), parts[-1])


class Recording:
    """
    One recorded update.

    :param model: the model in training
    :param inputs: arguments of the kind that it is for
    :param recorder: what records
    """

    def __init__(self, model: IQN, inputs: Inputs, recorder: Recorder):
        self.model = model
        self.inputs = inputs.clone()
        groups = model.policy.optimizer.param_groups
        self.lrs = [th.tensor(float(group["lr"]), dtype=th.float32, device=model.device) for group in groups]
        self.last_lrs = [float(group["lr"]) for group in groups]
        with recordable(model.policy.optimizer, self.lrs):
            self.result, self._replay = recorder.record(lambda: model._update(*self.inputs))
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.gradients = [parameter.grad for parameter in self.parameters]  # which the replay fills
        self.addresses = addresses(model)

    def is_current(self) -> bool:
        """
        :return: whether networks and optimizer still have the memory that the recording reads and writes
        """
        return self.addresses == addresses(self.model)

    def replay(self, inputs: Inputs) -> Update:
        """
        :param inputs: arguments of the recorded kind
        :return: the loss, and quantiles that the next replay overwrites
        """
        for given, place in zip(inputs.tensors(), self.inputs.tensors(), strict=True):
            place.copy_(given, non_blocking=True)
        for i, group in enumerate(self.model.policy.optimizer.param_groups):
            if group["lr"] != self.last_lrs[i]:
                self.last_lrs[i] = group["lr"]
                self.lrs[i].fill_(group["lr"])
        self._replay()
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        return Update(self.result.loss.clone(), self.result.taken)


class RecordedUpdates:
    """
    The updates of a model. Each kind of update is recorded once it has occurred :data:`WARM_UP` times in a row, and
    compared with the same update unrecorded. Where that is impossible, or gives something else, updates stay as they are.

    :param model: the model
    :param recorder: what records; None for CUDA graphs
    """

    def __init__(self, model: IQN, recorder: Recorder | None = None):
        self.model = model
        self.recorder = CudaRecorder(model.device) if recorder is None else recorder
        self.recordings: dict[Hashable, Recording] = {}
        self.kind: Hashable = None
        self.in_a_row = 0
        self.failed = False

    def __call__(self, batch: ReplayBufferSamples) -> Update:
        """
        Do one update.

        :param batch: B transitions
        :return: the loss, and the quantiles of the actions taken, which the next update may overwrite
        """
        inputs = Inputs(batch, self.model._target_levels())
        kind = None if self.failed else kind_of(self.model, inputs)
        if kind is None:
            return self.model._update(*inputs)
        recording = self.recordings.get(kind)
        if recording is not None:
            if recording.is_current():
                return recording.replay(inputs)
            self.recordings.clear()
            self.in_a_row = 0
        self.in_a_row = self.in_a_row + 1 if kind == self.kind else 1
        self.kind = kind
        if self.in_a_row <= WARM_UP:
            return self.recorder.warm_up(lambda: self.model._update(*inputs))
        if len(self.recordings) >= MAX_RECORDINGS:
            return self.model._update(*inputs)
        return self._record(kind, inputs)

    def _record(self, kind: Hashable, inputs: Inputs) -> Update:
        """Record an update and compare a replay with it."""
        fault, recording = "", None
        try:
            recording = Recording(self.model, inputs, self.recorder)
        except Exception as error:  # whatever a part of the user's does that cannot be recorded
            first = error.__context__ or error  # the end of a recording that broke off fails too, and says less
            fault = f"cannot be recorded ({type(first).__name__}: {first})"
        if recording is None:  # only now: the error holds what was recorded so far
            self._give_up(fault)
            return self.model._update(*inputs)
        before = Snapshot(self.model)
        expected = self.model._update(*inputs)
        expected = Update(*(tensor.clone() for tensor in expected))
        after = Snapshot(self.model)
        before.restore()
        replayed = recording.replay(inputs)
        difference, length = Snapshot(self.model).distance(after), before.distance(after)
        if not difference <= TOLERANCE * length:
            after.restore()
            self._give_up(f"is another one when it is replayed (off by {difference:.3g}, of {length:.3g})")
            return expected
        self.recordings[kind] = recording
        return replayed

    def __getstate__(self) -> dict[str, Any]:
        # Recordings are of this model's memory: a copy makes its own
        return {**self.__dict__, "recordings": {}, "kind": None, "in_a_row": 0}

    def _give_up(self, reason: str) -> None:
        self.failed = True
        self.recordings.clear()
        for parameter in self.model.quantile_net.parameters():
            parameter.grad = None
        warnings.warn(f"Training goes on without CUDA graphs, which is slower: an update {reason}", stacklevel=5)


class Snapshot:
    """
    Network, optimizer and random numbers at one moment.

    :param model: a model
    """

    def __init__(self, model: IQN):
        self.model = model
        self.n_weights = sum(1 for _ in model.quantile_net.parameters())
        self.tensors = [tensor.detach().clone() for tensor in self._places()]
        self.cpu_state = th.get_rng_state()
        self.cuda_state = th.cuda.get_rng_state(model.device) if model.device.type == "cuda" else None

    def _places(self) -> list[th.Tensor]:
        net, state = self.model.quantile_net, self.model.policy.optimizer.state
        moments = [value for values in state.values() for value in values.values() if isinstance(value, th.Tensor)]
        return [*net.parameters(), *net.buffers(), *moments]

    def restore(self) -> None:
        """Put everything back, to where it was in memory."""
        with th.no_grad():
            for place, tensor in zip(self._places(), self.tensors, strict=True):
                place.copy_(tensor)
        th.set_rng_state(self.cpu_state)
        if self.cuda_state is not None:
            th.cuda.set_rng_state(self.cuda_state, self.model.device)

    def distance(self, other: Snapshot) -> float:
        """
        :param other: another moment
        :return: sum of the absolute differences between the weights
        """
        pairs = zip(self.tensors[: self.n_weights], other.tensors, strict=False)
        return sum(float((a.double() - b.double()).abs().sum()) for a, b in pairs)


def can_record(model: IQN) -> bool:
    """
    :param model: a model that is set up
    :return: whether its updates are worth recording, and leave everything on the device
    """
    known = type(model.policy.optimizer) in (th.optim.Adam, th.optim.AdamW)
    return model.cuda_graphs and model.device.type == "cuda" and known and is_fused(model.policy.optimizer)


def kind_of(model: IQN, inputs: Inputs) -> Hashable:
    """
    What an update depends on besides tensors and learning rates, so what a recording holds for.

    :param model: the model
    :param inputs: arguments of its update
    :return: that, or None if it depends on what NumPy computes in between, or loading has changed the kind of optimizer
    """
    constants, groups = model._update_constants(), model.policy.optimizer.param_groups
    if constants is None or not is_fused(model.policy.optimizer):
        return None
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in inputs.tensors())
    settings = tuple((group["betas"], group["eps"], group["weight_decay"]) for group in groups)
    trained = tuple(parameter.requires_grad for group in groups for parameter in group["params"])
    return shapes, settings, trained, constants


def addresses(model: IQN) -> tuple[int, ...]:
    """
    :param model: a model
    :return: where in memory weights and optimizer's state begin; loading into a model moves some of it
    """
    optimizer = model.policy.optimizer
    first = optimizer.param_groups[0]["params"][0]
    moment = optimizer.state[first].get("exp_avg", first)
    return id(optimizer), first.data_ptr(), moment.data_ptr()


@contextmanager
def recordable(optimizer: th.optim.Optimizer, lrs: list[th.Tensor]) -> Iterator[None]:
    """
    Let an optimizer read its learning rates from tensors.

    :param optimizer: fused Adam
    :param lrs: a learning rate for each of its groups
    """
    before = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
    try:
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"], group["capturable"] = lr, True
        yield
    finally:
        for group, (lr, capturable) in zip(optimizer.param_groups, before, strict=True):
            group["lr"], group["capturable"] = lr, capturable
