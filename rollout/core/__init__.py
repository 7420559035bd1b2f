"""Core of rollouts, pure: the records of a log, the stage machine over them, phase timers, results, groups.

Time is an argument; nothing here waits, reads a clock or reaches a port. What a rollout does next is a function of
its log (`stage_machine`), so that a worker may end at any point and another one continues.
"""
