"""Rollout worker: drives many rollouts in one event loop; their handlers run in processes of their own.

`worker` takes assignments from its port; `rollout_run` does the steps of one rollout; `stage_calls` answers what its
handler asks for; `handler_pool` has the processes, `handler_process` is what runs in one, and `frames` is between them.
"""
