"""What the outputs of an encoder mean: one entry per task, which a backend turns into answers. Imports no system."""

from tidal.encoder_tasks.entries import TASKS, EncoderTask, TaskName, TaskOutput, task_entry
from tidal.encoder_tasks.head import RowResult, TaskHead

__all__ = ["TASKS", "EncoderTask", "RowResult", "TaskHead", "TaskName", "TaskOutput", "task_entry"]
