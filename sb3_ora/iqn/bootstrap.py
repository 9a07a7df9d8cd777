"""Bootstrap masks: which heads learn from which transition."""

import torch as th
from stable_baselines3.common.type_aliases import ReplayBufferSamples


def _mix(bits: th.Tensor) -> th.Tensor:
    """A bijective integer hash (xor-shift and multiply), so that close inputs give unrelated outputs."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        bits = (bits ^ _shifted(bits, shift)) * factor
    return bits ^ _shifted(bits, 31)


def _shifted(bits: th.Tensor, shift: int) -> th.Tensor:
    """To the right, filled with zeros: ``>>`` alone would fill with the sign."""
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


def bootstrap_mask(batch: ReplayBufferSamples, n_heads: int, probability: float) -> th.Tensor:
    """
    The heads that learn from each transition (Osband et al. 2016). A transition is in the same bootstrap samples
    whenever it is replayed, with any replay buffer: the mask is a hash of the transition itself.

    :param batch: B transitions
    :param n_heads: number of heads K
    :param probability: probability that a head learns from a transition
    :return: zeros and ones, (K, B)
    """
    parts = []
    for observations in (batch.observations, batch.next_observations):
        tensors = observations.values() if isinstance(observations, dict) else [observations]
        parts += [tensor.reshape(len(tensor), -1).to(th.float32) for tensor in tensors]
    parts += [batch.actions.to(th.float32), batch.rewards]
    content = th.cat(parts, dim=1).contiguous().view(th.int32).to(th.int64)  # (B, D), the bits of each number
    position = th.arange(1, content.shape[1] + 1, device=content.device)
    transition = _mix(content * 2654435761 + position * 40503).sum(dim=1)  # (B,)
    heads = _mix(th.arange(1, n_heads + 1, device=content.device))  # (K,)
    bits = _shifted(_mix(transition.unsqueeze(0) ^ heads.unsqueeze(1)), 40)  # (K, B), 24 bits are exact in float32
    uniform = bits.to(th.float32) / (1 << 24)  # in [0, 1)
    return (uniform < probability).to(th.float32)
