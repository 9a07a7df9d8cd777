"""Adam's step without what torch puts around it, which takes longer than the step of a small network."""

import importlib
from typing import Any

import torch as th

_OPTIMIZERS = vars(importlib.import_module("torch.optim.optimizer"))  # which is no attribute of torch.optim
#: Hooks of all optimizers, as far as this torch has them
_GLOBAL_HOOKS = [_OPTIMIZERS.get(name) for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")]


def step(optimizer: th.optim.Optimizer) -> None:
    """
    ``optimizer.step()``, to the same bits. Where it is fused Adam on the CPU, with one group of weights, this calls what torch
    does in the end, ``_foreach_add_`` and ``_fused_adam_``.

    :param optimizer: an optimizer, the gradients being set
    """
    if not _is_plain(optimizer):
        optimizer.step()
        return
    (group,) = optimizer.param_groups
    parameters = group["params"]
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    states: list[Any] = [optimizer.state.get(parameter) for parameter in parameters]
    if any(gradient is None for gradient in gradients) or not all(states):  # the first step makes the states
        optimizer.step()
        return
    beta1, beta2 = group["betas"]
    with th.no_grad():
        steps = [state["step"] for state in states]
        th._foreach_add_(steps, 1)
        th._fused_adam_(
            parameters,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],  # of amsgrad
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )


def _is_plain(optimizer: th.optim.Optimizer) -> bool:
    """Whether it is torch's Adam, with nothing that would be left out."""
    known = hasattr(th, "_fused_adam_") and hasattr(th, "_foreach_add_")  # torch's own, which may change
    if not known or type(optimizer) is not th.optim.Adam or "step" in optimizer.__dict__ or len(optimizer.param_groups) != 1:
        return False
    (group,) = optimizer.param_groups
    other = any(group.get(option) for option in ("amsgrad", "capturable", "differentiable", "decoupled_weight_decay"))
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks or any(_GLOBAL_HOOKS)
    scaled = hasattr(optimizer, "found_inf") or hasattr(optimizer, "grad_scale")
    return bool(group["fused"]) and group["params"][0].is_cpu and not (other or hooks or scaled)
