from sb3_ora.checkpoint.files import CheckpointError, checkpoints_in, last_checkpoint, read_checkpoint
from sb3_ora.checkpoint.resuming import RunCheckpoint, resume

__all__ = ["CheckpointError", "RunCheckpoint", "checkpoints_in", "last_checkpoint", "read_checkpoint", "resume"]
